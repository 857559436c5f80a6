//! Decompression of batch bodies with a limit: a small batch must not make the broker allocate without bound.
//! Compression in the forms that every client reads.

use std::borrow::Cow;
use std::io::{self, Read, Write};

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use thiserror::Error;

/// Largest body that is validated; a batch that expands further is refused.
pub(crate) const DECOMPRESSED_BYTES_MAX: usize = 128 << 20;

pub(crate) const NONE: u8 = 0;
pub(crate) const GZIP: u8 = 1;
pub(crate) const SNAPPY: u8 = 2;
pub(crate) const LZ4: u8 = 3;
pub(crate) const ZSTD: u8 = 4;

/// Kafka's default, which is its fast encoder and not the level 9 of the other one (KIP-390).
const LZ4_LEVEL_DEFAULT: i32 = 9;

/// Frame that Java and librdkafka put around snappy blocks: magic, version, lowest compatible version.
const SNAPPY_FRAME_MAGIC: &[u8] = b"\x82SNAPPY\0";
const SNAPPY_FRAME_HEADER_BYTES: usize = 16;
/// Plain bytes in one block of a snappy frame, as the Java client writes them.
const SNAPPY_BLOCK_BYTES: usize = 32 << 10;

#[derive(Debug, Error)]
pub(crate) enum DecompressError {
    #[error("more than {limit_bytes} bytes")]
    TooLarge { limit_bytes: usize },
    #[error("{0}")]
    Damaged(String),
}

fn damaged(error: impl ToString) -> DecompressError {
    DecompressError::Damaged(error.to_string())
}

/// The records of a batch body in plain bytes; no copy when it is not compressed.
pub(crate) fn decompress(compression: u8, body: &[u8]) -> Result<Cow<'_, [u8]>, DecompressError> {
    decompress_within(compression, body, DECOMPRESSED_BYTES_MAX)
}

fn decompress_within(
    compression: u8,
    body: &[u8],
    limit_bytes: usize,
) -> Result<Cow<'_, [u8]>, DecompressError> {
    let plain = match compression {
        NONE => return Ok(Cow::Borrowed(body)),
        GZIP => read_limited(MultiGzDecoder::new(body), limit_bytes)?,
        SNAPPY => snappy(body, limit_bytes)?,
        LZ4 => read_limited(lz4::Decoder::new(body).map_err(damaged)?, limit_bytes)?,
        ZSTD => read_limited(zstd::stream::read::Decoder::new(body).map_err(damaged)?, limit_bytes)?,
        other => return Err(DecompressError::Damaged(format!("compression type {other}"))),
    };
    Ok(Cow::Owned(plain))
}

fn read_limited(reader: impl Read, limit_bytes: usize) -> Result<Vec<u8>, DecompressError> {
    let mut plain = Vec::new();
    reader.take(limit_bytes as u64 + 1).read_to_end(&mut plain).map_err(damaged)?;
    if plain.len() > limit_bytes {
        return Err(DecompressError::TooLarge { limit_bytes });
    }
    Ok(plain)
}

/// Packs the plain records of a batch. `compression` is what [`decompress`] takes. `level`: of gzip (0-9), lz4 (1-17) or
/// zstd; `None`, gzip's −1 and lz4's 9 stand for the codec's default.
///
/// # Errors
/// An unknown compression type, or what the library says.
pub(crate) fn compress(compression: u8, level: Option<i32>, plain: &[u8]) -> io::Result<Vec<u8>> {
    match compression {
        NONE => Ok(plain.to_vec()),
        GZIP => {
            let level = level.and_then(|level| u32::try_from(level).ok());
            let level = level
                .map_or_else(flate2::Compression::default, |level| flate2::Compression::new(level.min(9)));
            let mut encoder = GzEncoder::new(Vec::new(), level);
            encoder.write_all(plain)?;
            encoder.finish()
        }
        SNAPPY => snappy_frame(plain),
        LZ4 => {
            // The library ends at 12 and takes what is above for it. The Java client reads only independent blocks.
            let level =
                level.filter(|level| *level != LZ4_LEVEL_DEFAULT).and_then(|level| u32::try_from(level).ok());
            let mut encoder = lz4::EncoderBuilder::new()
                .level(level.unwrap_or(0))
                .block_mode(lz4::BlockMode::Independent)
                .block_size(lz4::BlockSize::Max64KB)
                .checksum(lz4::ContentChecksum::NoChecksum)
                .build(Vec::new())?;
            encoder.write_all(plain)?;
            let (packed, result) = encoder.finish();
            result.map(|()| packed)
        }
        ZSTD => zstd::stream::encode_all(plain, level.unwrap_or(0)),
        other => Err(io::Error::other(format!("compression type {other}"))),
    }
}

fn snappy_frame(plain: &[u8]) -> io::Result<Vec<u8>> {
    let mut framed = SNAPPY_FRAME_MAGIC.to_vec();
    for version in [1_u32, 1] {
        framed.extend_from_slice(&version.to_be_bytes());
    }
    for block in plain.chunks(SNAPPY_BLOCK_BYTES) {
        let packed = snap::raw::Encoder::new().compress_vec(block)?;
        framed.extend_from_slice(&(packed.len() as u32).to_be_bytes());
        framed.extend_from_slice(&packed);
    }
    Ok(framed)
}

/// One raw block, or the framed sequence of blocks that most clients write.
fn snappy(body: &[u8], limit_bytes: usize) -> Result<Vec<u8>, DecompressError> {
    let mut plain = Vec::new();
    if !body.starts_with(SNAPPY_FRAME_MAGIC) {
        snappy_block(body, &mut plain, limit_bytes)?;
        return Ok(plain);
    }
    let end = || damaged(io::Error::from(io::ErrorKind::UnexpectedEof));
    let mut rest = body.get(SNAPPY_FRAME_HEADER_BYTES..).ok_or_else(end)?;
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk::<4>().ok_or_else(end)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (block, after) = after.split_at_checked(length).ok_or_else(end)?;
        snappy_block(block, &mut plain, limit_bytes)?;
        rest = after;
    }
    Ok(plain)
}

fn snappy_block(block: &[u8], plain: &mut Vec<u8>, limit_bytes: usize) -> Result<(), DecompressError> {
    let length = snap::raw::decompress_len(block).map_err(damaged)?;
    // Snappy cannot shrink data below about a twentieth: a longer claim is a lie, not worth an allocation.
    if plain.len() + length > limit_bytes || length / 32 > block.len() {
        return Err(DecompressError::TooLarge { limit_bytes });
    }
    let start = plain.len();
    plain.resize(start + length, 0);
    snap::raw::Decoder::new().decompress(block, &mut plain[start..]).map_err(damaged)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::batch::{BatchHeader, HEADER_BYTES};
    use crate::log::test_batches::{BatchSpec, batch};
    use kafka_protocol::records::Compression;

    #[test]
    fn every_codec_gives_the_plain_records() {
        let spec = BatchSpec { records: 50, value_bytes: 100, ..BatchSpec::default() };
        let plain = batch(&spec).slice(HEADER_BYTES..);
        for compression in [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd] {
            let packed = batch(&BatchSpec { compression, ..spec.clone() });
            let header = BatchHeader::parse(&packed).unwrap();
            let body = packed.slice(HEADER_BYTES..);
            assert_eq!(decompress(header.compression(), &body).unwrap(), &plain[..], "{compression:?}");
            let short = decompress_within(header.compression(), &body, 1000);
            assert!(matches!(short, Err(DecompressError::TooLarge { .. })), "{compression:?}");
            let half = body.slice(..body.len() / 2);
            assert!(
                decompress(header.compression(), &half).map_or(true, |out| out.len() < plain.len()),
                "{compression:?}"
            );
        }
    }

    #[test]
    fn what_was_packed_is_unpacked() {
        let plain: Vec<u8> = (0..100_000_u32).flat_map(|n| (n / 7).to_be_bytes()).collect();
        for compression in [NONE, GZIP, SNAPPY, LZ4, ZSTD] {
            for part in [&plain[..], &[]] {
                for level in [None, Some(-1), Some(1), Some(9), Some(17)] {
                    let packed = compress(compression, level, part).unwrap();
                    assert_eq!(
                        decompress(compression, &packed).unwrap(),
                        part,
                        "type {compression}, {level:?}"
                    );
                }
            }
        }
        assert!(compress(5, None, &plain).is_err());
    }

    #[test]
    fn framed_snappy() {
        let block = snap::raw::Encoder::new().compress_vec(b"hello hello hello").unwrap();
        let mut framed = SNAPPY_FRAME_MAGIC.to_vec();
        framed.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
        for _ in 0..2 {
            framed.extend_from_slice(&(block.len() as u32).to_be_bytes());
            framed.extend_from_slice(&block);
        }
        assert_eq!(snappy(&framed, 100).unwrap(), b"hello hello hellohello hello hello");
        assert!(snappy(&framed[..framed.len() - 1], 100).is_err());
    }
}
