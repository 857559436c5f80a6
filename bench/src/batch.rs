//! One uncompressed record batch, built once and patched for each use, so that the generator costs next to nothing:
//! the numbers, their hashes and the CRC change, the rest stays. And its reader, which checks all of that.

use anyhow::{Context, Result, ensure};
use bytes::{Buf as _, BufMut as _};
use zurau_tests::records::now_ms;

/// Bytes before the records of a batch.
pub(crate) const HEADER: usize = 61;
/// The CRC covers everything from the attributes on.
const CRC_FROM: usize = 21;
const CRC_AT: usize = 17;
const TRANSACTIONAL: i16 = 1 << 4;
const CONTROL: i16 = 1 << 5;
/// Each value begins with its number and a hash over number and filler.
pub(crate) const VALUE_BYTES_MIN: usize = 16;
/// What a record has around its value, at most: lengths, offset and timestamp deltas, attributes.
pub(crate) const RECORD_OVERHEAD: usize = 12;

/// Who writes: in the values of its records, and as an idempotent producer also in its batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Writer {
    /// Of the bench, in each record.
    pub(crate) number: u16,
    /// Producer id and epoch given by the cluster.
    pub(crate) idempotent: Option<(i64, i16)>,
    pub(crate) transactional: bool,
}

/// The number in a record's value: a writer's records of one partition are numbered from 0.
pub(crate) fn number(writer: u16, sequence: u64) -> u64 {
    u64::from(writer) << 48 | sequence & ((1 << 48) - 1)
}

/// A batch of equally long records, of which any number from the front can be used.
pub(crate) struct BatchTemplate {
    bytes: Vec<u8>,
    records: Vec<RecordPlace>,
}

struct RecordPlace {
    value_at: usize,
    end: usize,
    filler_crc: u32,
}

impl BatchTemplate {
    /// A template of at least one record, as many as fit `batch_bytes`.
    pub(crate) fn new(batch_bytes: usize, value_bytes: usize) -> Self {
        let value_bytes = value_bytes.max(VALUE_BYTES_MIN);
        let capacity = (batch_bytes / (value_bytes + RECORD_OVERHEAD)).max(1);
        let mut bytes = vec![0; HEADER];
        let mut records = Vec::with_capacity(capacity);
        for index in 0..capacity {
            let mut record = vec![0_u8]; // attributes
            put_varint(&mut record, 0); // timestamp delta
            put_varint(&mut record, index as i64);
            put_varint(&mut record, -1); // no key
            put_varint(&mut record, value_bytes as i64);
            let value_at = record.len();
            record.extend_from_slice(&[0; VALUE_BYTES_MIN]);
            record.extend(filler(index, value_bytes - VALUE_BYTES_MIN));
            let filler_crc = crc32c::crc32c(&record[value_at + VALUE_BYTES_MIN..]);
            put_varint(&mut record, 0); // no headers
            put_varint(&mut bytes, record.len() as i64);
            let value_at = bytes.len() + value_at;
            bytes.extend_from_slice(&record);
            records.push(RecordPlace { value_at, end: bytes.len(), filler_crc });
        }
        Self { bytes, records }
    }

    /// How many records it holds.
    pub(crate) fn capacity(&self) -> usize {
        self.records.len()
    }

    /// Makes the first `count` records a sealed batch, numbered from `first` on and stamped with the time. Returns its
    /// length; the bytes are [`Self::bytes`] up to there.
    ///
    /// # Errors
    /// None or too many records are wanted.
    pub(crate) fn fill(&mut self, count: usize, writer: Writer, first: u64) -> Result<usize> {
        let places = self.records.get(..count).filter(|places| !places.is_empty());
        let places = places.with_context(|| format!("a batch of {count} records"))?;
        for (place, sequence) in places.iter().zip(first..) {
            let number = number(writer.number, sequence);
            let value = &mut self.bytes[place.value_at..place.value_at + VALUE_BYTES_MIN];
            value[..8].copy_from_slice(&number.to_be_bytes());
            value[8..].copy_from_slice(&hash(number, place.filler_crc).to_be_bytes());
        }
        let length = places[count - 1].end;
        let (producer_id, producer_epoch) = writer.idempotent.unwrap_or((-1, -1));
        let sequence = if writer.idempotent.is_some() { (first % (1 << 31)) as i32 } else { -1 };
        let mut header = &mut self.bytes[..HEADER];
        header.put_i64(0); // base offset
        header.put_i32(i32::try_from(length - 12)?);
        header.put_i32(-1); // leader epoch
        header.put_i8(2);
        header.put_u32(0); // CRC
        header.put_i16(if writer.transactional { TRANSACTIONAL } else { 0 });
        header.put_i32(i32::try_from(count - 1)?);
        let now = now_ms();
        header.put_i64(now);
        header.put_i64(now);
        header.put_i64(producer_id);
        header.put_i16(producer_epoch);
        header.put_i32(sequence);
        header.put_i32(i32::try_from(count)?);
        let crc = crc32c::crc32c(&self.bytes[CRC_FROM..length]);
        self.bytes[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
        Ok(length)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes that do not compress, different from record to record.
fn filler(seed: usize, count: usize) -> impl Iterator<Item = u8> {
    let mut state = seed as u64 + 0x9e37_79b9_7f4a_7c15;
    (0..count).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    })
}

/// A hash of a whole value that costs the writer no second look at the filler.
fn hash(number: u64, filler_crc: u32) -> u64 {
    let mut state = number ^ (u64::from(filler_crc) << 32 | u64::from(filler_crc));
    state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ state >> 31
}

/// Kafka's variable-length integers: zigzag, then seven bits a byte.
fn put_varint(buffer: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        buffer.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    buffer.push(rest as u8);
}

fn get_varint(bytes: &mut &[u8]) -> Result<i64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first().context("a record ends inside a number")?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    anyhow::bail!("a number in a record has more than ten bytes")
}

/// A record of the bench, read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) offset: i64,
    pub(crate) number: u64,
}

/// Takes the first whole batch off the front of fetched bytes and gives each of its records to `each`; a batch of
/// control records has none. Returns the offset behind the batch, or `None` if there is no whole batch.
///
/// # Errors
/// The batch is compressed or of another version, its CRC or a record's hash is wrong, or it does not decode.
pub(crate) fn read_batch(
    bytes: &mut &[u8],
    mut each: impl FnMut(Found) -> Result<()>,
) -> Result<Option<i64>> {
    let Some(length) = bytes.get(8..12).map(|mut length| length.get_u32() as usize + 12) else {
        return Ok(None);
    };
    ensure!(length >= HEADER, "a batch of {length} bytes");
    let Some(batch) = bytes.split_off(..length) else { return Ok(None) };
    let mut header = batch;
    let base = header.get_i64();
    header.advance(8);
    ensure!(header.get_i8() == 2, "the batch at {base} is not of version 2");
    let crc = header.get_u32();
    ensure!(crc == crc32c::crc32c(header), "the CRC of the batch at {base} is wrong");
    let attributes = header.get_i16();
    let end = base + i64::from(header.get_i32()) + 1;
    if attributes & CONTROL != 0 {
        return Ok(Some(end));
    }
    ensure!(attributes & 7 == 0, "the batch at {base} is compressed");
    header.advance(30);
    let count = header.get_i32();
    for _ in 0..count {
        let size = usize::try_from(get_varint(&mut header)?)?;
        let mut record = header.split_off(..size).context("a record is longer than its batch")?;
        record.split_off_first().context("an empty record")?;
        get_varint(&mut record)?;
        let offset = base + get_varint(&mut record)?;
        let key = get_varint(&mut record)?;
        ensure!(key == -1, "offset {offset} has a key");
        let size = usize::try_from(get_varint(&mut record)?)?;
        let value = record.split_off(..size).context("a value is longer than its record")?;
        let (mut head, filler) =
            value.split_at_checked(VALUE_BYTES_MIN).with_context(|| format!("offset {offset}: too short"))?;
        let number = head.get_u64();
        ensure!(head.get_u64() == hash(number, crc32c::crc32c(filler)), "offset {offset}: another hash");
        each(Found { offset, number })?;
    }
    ensure!(header.is_empty(), "{} bytes follow the records of the batch at {base}", header.len());
    Ok(Some(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(count: usize, first: u64) -> Vec<u8> {
        let mut template = BatchTemplate::new(1024, 100);
        let length = template.fill(count, Writer { number: 3, ..Writer::default() }, first).unwrap();
        template.bytes()[..length].to_vec()
    }

    #[test]
    fn a_filled_batch_is_one_that_every_consumer_reads() {
        for count in [1, 3, 9] {
            let records = zurau_tests::records::decode_batches(batch(count, 40).into()).unwrap();
            let numbers: Vec<_> = records.iter().map(|record| (&record.value[..8]).get_u64()).collect();
            let expected: Vec<_> = (40..).take(count).map(|sequence| number(3, sequence)).collect();
            assert_eq!(numbers, expected);
            assert!(records.iter().all(|record| record.value.len() == 100));
        }
    }

    #[test]
    fn the_reader_finds_what_was_filled_in() {
        let both = [batch(2, 0), batch(1, 2)].concat();
        let mut rest = &both[..];
        let mut found = Vec::new();
        let mut collect = |one| {
            found.push(one);
            Ok(())
        };
        assert_eq!(read_batch(&mut rest, &mut collect).unwrap(), Some(2));
        assert_eq!(read_batch(&mut rest, &mut collect).unwrap(), Some(1));
        assert_eq!(read_batch(&mut rest, &mut collect).unwrap(), None);
        let expected = [(0, 0), (1, 1), (0, 2)];
        let expected = expected.map(|(offset, sequence)| Found { offset, number: number(3, sequence) });
        assert_eq!(found, expected);
    }

    #[test]
    fn any_changed_byte_of_what_the_client_wrote_is_noticed() {
        let good = batch(2, 7);
        for at in CRC_AT..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(read_batch(&mut &bad[..], |_| Ok(())).is_err(), "byte {at} was changed");
        }
    }

    #[test]
    fn a_value_in_the_place_of_another_is_noticed_though_the_crc_is_right() {
        let mut bad = batch(2, 7);
        let filler = bad.len() - 20;
        bad[filler] ^= 1;
        let crc = crc32c::crc32c(&bad[CRC_FROM..]);
        bad[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
        let error = read_batch(&mut &bad[..], |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("another hash"), "{error}");
    }

    #[test]
    fn a_cut_batch_is_left_alone() {
        let whole = batch(1, 0);
        for length in 0..whole.len() {
            let mut cut = &whole[..length];
            assert_eq!(read_batch(&mut cut, |_| Ok(())).unwrap(), None);
            assert_eq!(cut.len(), length);
        }
    }

    #[test]
    fn more_records_than_there_are_places_are_refused() {
        let mut template = BatchTemplate::new(1000, 100);
        assert!(template.fill(template.capacity() + 1, Writer::default(), 0).is_err());
        assert!(template.fill(0, Writer::default(), 0).is_err());
    }
}
