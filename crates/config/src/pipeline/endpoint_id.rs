//! The public key that names a worker, in the two forms that iroh reads.

use std::fmt::Write;

/// Bytes of a key.
const BYTES: usize = 32;
/// Characters of a key in hexadecimal digits, which is how iroh prints it.
const HEX_DIGITS: usize = 2 * BYTES;
/// Characters of a key in base32 without padding: 51 of five bits, and one for the last bit.
const BASE32_CHARACTERS: usize = (BYTES * 8).div_ceil(5);
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// The key in small hexadecimal digits; `None` if the text has neither form. Only connecting
/// tells if the key exists.
pub(super) fn canonical(text: &str) -> Option<String> {
    match text.len() {
        HEX_DIGITS if text.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Some(text.to_ascii_lowercase())
        }
        BASE32_CHARACTERS => from_base32(text),
        _ => None,
    }
}

fn from_base32(text: &str) -> Option<String> {
    let (mut pending, mut bits) = (0_u32, 0);
    let mut hex = String::with_capacity(HEX_DIGITS);
    for byte in text.bytes() {
        let upper = byte.to_ascii_uppercase();
        let value = BASE32.iter().position(|&symbol| symbol == upper)?;
        pending = pending << 5 | value as u32;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            // Writing to a string cannot fail.
            let _ = write!(hex, "{:02x}", pending >> bits);
            pending &= (1 << bits) - 1;
        }
    }
    // The bits beyond the key must be zero: two texts would be one key otherwise.
    (pending == 0).then_some(hex)
}

#[cfg(test)]
mod tests {
    use super::canonical;

    /// The key of the secret key of 32 zeros.
    const HEX: &str = "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29";
    /// The same by Python's `base64.b32encode`.
    const BASE32: &str = "HNVCPPGOW2SC2YVDVDICU3YNONSTEFLXDXREHJR2YBEKDC2Z3IUQ";

    #[test]
    fn both_forms_are_one_key() {
        assert_eq!(canonical(HEX).as_deref(), Some(HEX));
        assert_eq!(canonical(BASE32).as_deref(), Some(HEX));
        for other in [HEX.to_uppercase(), BASE32.to_lowercase()] {
            assert_eq!(canonical(&other).as_deref(), Some(HEX), "{other}");
        }
        assert_eq!(canonical(&"A".repeat(52)), Some("0".repeat(64)));
        assert_eq!(
            canonical(&format!("{}Q", "7".repeat(51))),
            Some("f".repeat(64))
        );
    }

    #[test]
    fn nothing_else_is_a_key() {
        let bad = [
            String::new(),
            HEX[1..].to_owned(),
            HEX.replace('b', "g"),
            format!("{HEX}0"),
            BASE32.replace('H', "1"),
            // A last bit, and one beyond it.
            format!("{}R", &BASE32[..51]),
            format!("{}ü", &BASE32[..50]),
        ];
        for text in bad {
            assert_eq!(canonical(&text), None, "{text}");
        }
    }
}
