//! Event files: records of protocol buffers, as defined by `tensorflow/core/lib/io/record_writer.h` and
//! `event.proto`.

/// A point of several curves.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scalars<'a> {
    /// Seconds since 1970.
    pub(crate) time: f64,
    pub(crate) step: u64,
    /// Tags and values.
    pub(crate) values: Vec<(&'a str, f32)>,
}

/// An event file that is being written.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventFile(Vec<u8>);

impl EventFile {
    /// A file with the version record.
    pub(crate) fn begin(time: f64) -> Self {
        let mut event = Vec::new();
        double(&mut event, 1, time);
        bytes(&mut event, 3, b"brain.Event:2");
        let mut file = Self::default();
        file.record(&event);
        file
    }

    pub(crate) fn add(&mut self, scalars: &Scalars<'_>) {
        let mut summary = Vec::new();
        for (tag, value) in &scalars.values {
            let mut entry = Vec::new();
            bytes(&mut entry, 1, tag.as_bytes());
            key(&mut entry, 2, FIXED_32);
            entry.extend(value.to_le_bytes());
            bytes(&mut summary, 1, &entry);
        }
        let mut event = Vec::new();
        double(&mut event, 1, scalars.time);
        key(&mut event, 2, VARINT);
        varint(&mut event, scalars.step);
        bytes(&mut event, 5, &summary);
        self.record(&event);
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Length and content, each with its checksum.
    fn record(&mut self, content: &[u8]) {
        let length = (content.len() as u64).to_le_bytes();
        self.0.extend(length);
        self.0.extend(masked_crc32c(&length).to_le_bytes());
        self.0.extend(content);
        self.0.extend(masked_crc32c(content).to_le_bytes());
    }
}

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED_32: u64 = 5;

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// The number and wire type of a field.
fn key(to: &mut Vec<u8>, field: u64, kind: u64) {
    varint(to, (field << 3) | kind);
}

fn double(to: &mut Vec<u8>, field: u64, value: f64) {
    key(to, field, FIXED_64);
    to.extend(value.to_le_bytes());
}

fn bytes(to: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(to, field, LENGTH);
    varint(to, value.len() as u64);
    to.extend(value);
}

/// CRC-32C, rotated and shifted by a constant, so that records may contain checksums.
fn masked_crc32c(content: &[u8]) -> u32 {
    let crc = !content.iter().fold(!0, |crc: u32, &byte| {
        TABLE[(crc as u8 ^ byte) as usize] ^ (crc >> 8)
    });
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Remainders of all bytes by Castagnoli's polynomial.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (if crc & 1 == 1 { 0x82f6_3b78 } else { 0 });
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::{EventFile, Scalars};

    #[test]
    fn bytes_are_those_of_the_tensorboard_package() {
        let mut file = EventFile::begin(1_764_181_802.0);
        let events = [
            Scalars {
                time: 1_764_181_802.25,
                step: 1,
                values: vec![
                    ("train/loss", 2.5),
                    ("train/grad_norm", 0.75),
                    ("train/learning_rate", 3e-4),
                ],
            },
            Scalars {
                time: 1_764_181_803.0,
                step: 2,
                values: vec![("train/loss", 1e-30)],
            },
            Scalars {
                time: 1_764_181_803.0,
                step: 300,
                values: vec![("eval/loss", -1.0), ("train/rewards/märgins", 0.1)],
            },
            Scalars {
                time: 1_764_181_804.5,
                step: 5_000_000_000,
                values: vec![("train/loss", 0.0)],
            },
        ];
        for event in &events {
            file.add(event);
        }
        let golden = include_bytes!("../../tests/fixtures/scalars.tfevents");
        assert_eq!(file.into_bytes(), golden);
    }
}
