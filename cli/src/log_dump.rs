//! `zurau log dump`: what stands in the files of a log, and with `--verify` whether it is right.
//!
//! Text is for people; `--output json` gives one JSON object a line. The exit code is 1 when anything is wrong.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use zurau_broker::log::decode_offsets;
use zurau_broker::log::inspect::{
    BatchReader, InspectedBatch, InspectedRecord, read_epochs, read_offset_index, read_snapshot,
    read_time_index, read_transaction_index,
};

use crate::log_verify::{
    LogFacts, verify_batch, verify_offset_index, verify_time_index, verify_transactions,
};

/// Arguments of `zurau log dump`.
#[derive(Args, Debug)]
pub(crate) struct LogDumpArguments {
    /// Files of a log: .log, .index, .timeindex, .txnindex, .snapshot, leader-epoch-checkpoint, or a checkpoint.
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Check what is inside: records, order, and indexes against the .log file beside them.
    #[arg(long)]
    pub(crate) verify: bool,
    /// Show every record, not only batches.
    #[arg(long)]
    pub(crate) records: bool,
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Text,
    Json,
}

/// Runs the command on standard output.
pub(crate) fn run(arguments: &LogDumpArguments) -> ExitCode {
    let mut output = io::BufWriter::new(io::stdout().lock());
    let dumped = dump(arguments, &mut output).and_then(|problems| output.flush().map(|()| problems));
    match dumped {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        // Whoever reads the output has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("zurau log dump: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the dump of all files; returns how many problems there are.
///
/// # Errors
/// The output cannot be written. Files that cannot be read are problems.
pub(crate) fn dump(arguments: &LogDumpArguments, output: &mut impl Write) -> io::Result<usize> {
    let mut problems = 0;
    for path in &arguments.files {
        let mut file = FileDump { arguments, path, output: &mut *output, problems: 0 };
        file.dump()?;
        problems += file.problems;
    }
    Ok(problems)
}

struct FileDump<'a, W> {
    arguments: &'a LogDumpArguments,
    path: &'a PathBuf,
    output: &'a mut W,
    problems: usize,
}

impl<W: Write> FileDump<'_, W> {
    /// One line: a kind and its fields.
    fn line(&mut self, kind: &str, fields: &Value) -> io::Result<()> {
        let fields = fields.as_object().cloned().unwrap_or_default();
        if self.arguments.output == Output::Json {
            let mut object = Map::new();
            object.insert("file".to_owned(), json!(self.path.display().to_string()));
            object.insert("kind".to_owned(), json!(kind));
            object.extend(fields);
            return writeln!(self.output, "{}", Value::Object(object));
        }
        write!(self.output, "{kind}")?;
        for (name, value) in &fields {
            match value {
                Value::Null => write!(self.output, " {name}: -")?,
                Value::String(text) => write!(self.output, " {name}: {text}")?,
                other => write!(self.output, " {name}: {other}")?,
            }
        }
        writeln!(self.output)
    }

    fn problem(&mut self, reason: impl Into<String>) -> io::Result<()> {
        self.problems += 1;
        self.line("problem", &json!({ "reason": reason.into() }))
    }

    fn dump(&mut self) -> io::Result<()> {
        if self.arguments.output == Output::Text {
            writeln!(self.output, "== {}", self.path.display())?;
        }
        let name = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let name = [".deleted", ".cleaned", ".swap"]
            .iter()
            .fold(name.as_str(), |name, suffix| name.strip_suffix(suffix).unwrap_or(name));
        let kind = name.rsplit_once('.').map_or("", |(_, kind)| kind);
        let read = match (kind, name) {
            ("log", _) => self.log(),
            ("index", _) => self.offset_index(),
            ("timeindex", _) => self.time_index(),
            ("txnindex", _) => self.transaction_index(),
            ("snapshot", _) => self.snapshot(),
            (_, "leader-epoch-checkpoint") => self.epochs(),
            (_, name) if name.ends_with("-checkpoint") => self.checkpoint(),
            _ => return self.problem("not a file of a log that this command knows"),
        };
        match read {
            Ok(()) => Ok(()),
            Err(DumpError::Output(error)) => Err(error),
            Err(DumpError::Input(reason)) => self.problem(reason),
        }
    }

    fn log(&mut self) -> Result<(), DumpError> {
        let reader = BatchReader::open(self.path)?;
        let (mut batches, mut records, mut position) = (0_u64, 0_u64, 0);
        let mut facts = LogFacts::default();
        let file_bytes = reader.file_bytes();
        for batch in reader {
            let batch = match batch? {
                Ok(batch) => batch,
                Err(reason) => {
                    self.problem(format!("no batch at byte {position} of {file_bytes}: {reason}"))?;
                    break;
                }
            };
            position = batch.position + batch.bytes.len() as u64;
            batches += 1;
            records += batch.header.record_count.unsigned_abs() as u64;
            self.batch(&batch)?;
            if let Err(reason) = &batch.crc {
                self.problem(format!("batch at byte {}: {reason}", batch.position))?;
            } else if self.arguments.verify {
                for reason in verify_batch(self.path, &facts, &batch) {
                    self.problem(reason)?;
                }
            }
            facts.add(&batch);
        }
        let summary =
            json!({ "batches": batches, "records": records, "bytes": position, "file_bytes": file_bytes });
        Ok(self.line("log", &summary)?)
    }

    fn batch(&mut self, batch: &InspectedBatch) -> io::Result<()> {
        let header = &batch.header;
        let mut fields = json!({
            "base_offset": header.base_offset, "last_offset": header.last_offset(),
            "position": batch.position, "bytes": header.size_bytes(), "records": header.record_count,
            "leader_epoch": header.partition_leader_epoch, "max_timestamp": header.max_timestamp,
            "timestamp_type": if header.has_log_append_time() { "LogAppendTime" } else { "CreateTime" },
            "compression": codec(header.compression()), "crc_ok": batch.crc.is_ok(),
        });
        let mut put = |name: &str, value: Value| {
            if let Value::Object(fields) = &mut fields {
                fields.insert(name.to_owned(), value);
            }
        };
        if header.has_producer() {
            put("producer_id", json!(header.producer_id));
            put("producer_epoch", json!(header.producer_epoch));
            put("base_sequence", json!(header.base_sequence));
            put("transactional", json!(header.is_transactional()));
        }
        if let Some(horizon_ms) = header.delete_horizon_ms() {
            put("delete_horizon", json!(horizon_ms));
        }
        if header.is_control() {
            let marker = batch.marker();
            let kind = marker.map_or("other", |marker| if marker.commit { "commit" } else { "abort" });
            put("control", json!(kind));
            put("coordinator_epoch", json!(marker.map(|marker| marker.coordinator_epoch)));
        }
        self.line("batch", &fields)?;
        if !self.arguments.records || batch.crc.is_err() || header.is_control() {
            return Ok(());
        }
        match batch.records() {
            Ok(records) => records.iter().try_for_each(|record| self.record(record)),
            Err(reason) => self.problem(format!("batch at byte {}: {reason}", batch.position)),
        }
    }

    fn record(&mut self, record: &InspectedRecord) -> io::Result<()> {
        let headers: Vec<Value> = record
            .headers
            .iter()
            .map(|(name, value)| json!([text(name), value.as_deref().map(text)]))
            .collect();
        let mut fields = json!({
            "offset": record.offset, "timestamp": record.timestamp,
            "key": record.key.as_deref().map(text), "value": record.value.as_deref().map(text),
        });
        if let (Value::Object(fields), false) = (&mut fields, headers.is_empty()) {
            fields.insert("headers".to_owned(), Value::Array(headers));
        }
        self.line("record", &fields)
    }

    /// What is known of the log beside an index; a problem when there is none.
    fn log_beside(&mut self) -> Result<Option<LogFacts>, DumpError> {
        if !self.arguments.verify {
            return Ok(None);
        }
        let log = self.path.with_extension("log");
        match LogFacts::read(&log) {
            Ok(facts) => Ok(Some(facts)),
            Err(reason) => {
                self.problem(format!("cannot be checked against {}: {reason}", log.display()))?;
                Ok(None)
            }
        }
    }

    fn left_over(&mut self, bytes: usize) -> io::Result<()> {
        if bytes == 0 { Ok(()) } else { self.problem(format!("{bytes} bytes behind the last whole entry")) }
    }

    fn offset_index(&mut self) -> Result<(), DumpError> {
        let (entries, left_over) = read_offset_index(self.path)?;
        for (offset, position) in &entries {
            self.line("entry", &json!({ "offset": offset, "position": position }))?;
        }
        self.left_over(left_over)?;
        if let Some(facts) = self.log_beside()? {
            for reason in verify_offset_index(&facts, &entries) {
                self.problem(reason)?;
            }
        }
        Ok(self.line("index", &json!({ "entries": entries.len() }))?)
    }

    fn time_index(&mut self) -> Result<(), DumpError> {
        let (entries, left_over) = read_time_index(self.path)?;
        for (timestamp, offset) in &entries {
            self.line("entry", &json!({ "timestamp": timestamp, "offset": offset }))?;
        }
        self.left_over(left_over)?;
        if let Some(facts) = self.log_beside()? {
            for reason in verify_time_index(&facts, &entries) {
                self.problem(reason)?;
            }
        }
        Ok(self.line("timeindex", &json!({ "entries": entries.len() }))?)
    }

    fn transaction_index(&mut self) -> Result<(), DumpError> {
        let entries = read_transaction_index(self.path)?.ok_or_else(|| {
            DumpError::Input("the file is damaged: not whole entries of version 0".to_owned())
        })?;
        for entry in &entries {
            let fields = json!({
                "producer_id": entry.producer_id, "first_offset": entry.first_offset,
                "last_offset": entry.last_offset, "last_stable_offset": entry.last_stable_offset,
            });
            self.line("aborted", &fields)?;
        }
        if let Some(facts) = self.log_beside()? {
            for reason in verify_transactions(&facts, &entries) {
                self.problem(reason)?;
            }
        }
        Ok(self.line("txnindex", &json!({ "entries": entries.len() }))?)
    }

    fn snapshot(&mut self) -> Result<(), DumpError> {
        let producers = read_snapshot(self.path)?.ok_or_else(|| {
            DumpError::Input("the snapshot is damaged: wrong version, CRC or length".to_owned())
        })?;
        for producer in &producers {
            let fields = json!({
                "producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch,
                "coordinator_epoch": producer.coordinator_epoch, "last_timestamp": producer.last_timestamp,
                "last_sequence": producer.last_batch.map(|(sequence, _)| sequence),
                "last_offset": producer.last_batch.map(|(_, offset)| offset),
                "transaction_first_offset": producer.transaction_first_offset,
            });
            self.line("producer", &fields)?;
        }
        Ok(self.line("snapshot", &json!({ "producers": producers.len() }))?)
    }

    fn epochs(&mut self) -> Result<(), DumpError> {
        for entry in read_epochs(self.path)?.map_err(DumpError::Input)? {
            let fields = json!({ "leader_epoch": entry.leader_epoch, "start_offset": entry.start_offset });
            self.line("epoch", &fields)?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), DumpError> {
        let text = std::fs::read(self.path).map_err(|error| DumpError::Input(error.to_string()))?;
        let offsets = decode_offsets(&text).map_err(|error| DumpError::Input(error.to_string()))?;
        for (partition, offset) in &offsets {
            let fields =
                json!({ "topic": *partition.topic, "partition": partition.partition, "offset": offset });
            self.line("checkpoint", &fields)?;
        }
        Ok(())
    }
}

/// Why a file's dump ended early: what it holds, or where it goes.
enum DumpError {
    Input(String),
    Output(io::Error),
}

impl From<io::Error> for DumpError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<zurau_broker::log::StorageError> for DumpError {
    fn from(error: zurau_broker::log::StorageError) -> Self {
        Self::Input(error.to_string())
    }
}

fn codec(compression: u8) -> &'static str {
    match compression {
        0 => "none",
        1 => "gzip",
        2 => "snappy",
        3 => "lz4",
        4 => "zstd",
        _ => "unknown",
    }
}

/// Readable bytes as they are; others as `0x` and hexadecimal digits.
fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => bytes.iter().fold("0x".to_owned(), |mut hex, byte| {
            use std::fmt::Write as _;
            let _ = write!(hex, "{byte:02x}");
            hex
        }),
    }
}

#[cfg(test)]
#[path = "log_dump_tests.rs"]
mod tests;
