//! A real text file goes in line by line with one client and comes out byte-identical with another.

use std::fs;

use anyhow::{Context, Result, ensure};
use zurau_tests::clients::{kcat, kcat_missing, python_missing, python_script};
use zurau_tests::{Cluster, TestDirectory, input, scenario, skip};

const COMPRESSIONS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];

#[test]
fn a_real_file_survives_every_client_and_compression() {
    let missing = kcat_missing().or_else(python_missing);
    if let Some(why) = missing {
        return skip("a_real_file_survives_every_client_and_compression", &why);
    }
    scenario("real-input", every_client_and_compression);
}

fn every_client_and_compression(directory: &TestDirectory) -> Result<()> {
    let Some(file) = input::long_text_file() else {
        skip("a_real_file_survives_every_client_and_compression", &input::missing());
        return Ok(());
    };
    let original = fs::read(&file).context("reading the input")?;
    let lines = original.iter().filter(|byte| **byte == b'\n').count();
    let count = lines.to_string();
    let file = file.to_string_lossy().into_owned();

    let mut cluster = Cluster::builder().start(directory)?;
    let bootstrap = cluster.bootstrap();
    // Each reader sees both producers and every compression; kafka-python is slow and reads two of ten.
    let readers = ["confluent", "kcat", "kafka-python", "kcat", "confluent"];
    for (compression, reader) in COMPRESSIONS.iter().zip(readers) {
        for producer in ["kcat", "confluent"] {
            let topic = format!("{producer}-{compression}");
            cluster.create_topic(&topic, &["[1,2,3]"])?;
            match producer {
                "kcat" => produce_with_kcat(&bootstrap, &topic, compression, &file)?,
                _ => {
                    python_script(
                        "lines.py",
                        &["produce", producer, &bootstrap, &topic, compression, &file],
                    )?;
                }
            }
            let reader = if reader == producer { "kcat" } else { reader };
            let reader = if reader == producer { "confluent" } else { reader };
            let read = match reader {
                "kcat" => read_with_kcat(&bootstrap, &topic)?,
                _ => python_script("lines.py", &["consume", reader, &bootstrap, &topic, &count])?,
            };
            ensure!(read == original, "{reader} read something else from {topic}: {} bytes", read.len());
            check_offsets(&cluster, &topic, lines)?;
        }
    }
    cluster.check_running()
}

fn produce_with_kcat(bootstrap: &str, topic: &str, compression: &str, file: &str) -> Result<()> {
    let arguments = ["-P", "-b", bootstrap, "-t", topic, "-p", "0", "-z", compression, "-X", "acks=all"];
    let arguments = [arguments.as_slice(), &["-X", "enable.idempotence=true", "-l", file]].concat();
    kcat(&arguments, None).map(|_| ())
}

fn read_with_kcat(bootstrap: &str, topic: &str) -> Result<Vec<u8>> {
    kcat(&["-C", "-b", bootstrap, "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q"], None)
}

fn check_offsets(cluster: &Cluster, topic: &str, lines: usize) -> Result<()> {
    let records = cluster.client().read_partition(topic, 0)?;
    ensure!(records.len() == lines, "{topic} holds {} records for {lines} lines", records.len());
    for (record, expected) in records.iter().zip(0..) {
        ensure!(record.offset == expected, "{topic}: offset {} where {expected} is due", record.offset);
    }
    Ok(())
}
