/// What was read off a device after an iteration. Both numbers are of the whole device, backbone and
/// adapters included; give what the device can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measurement {
    /// Largest number of bytes in use at any moment of this iteration. Exact, and of this iteration
    /// alone, whatever ran before; the number at the end of an iteration is not it.
    pub peak_in_use_bytes: Option<u64>,
    /// Bytes that the device's pools hold. They hold whole pages and give none back, so this is the
    /// high-water mark of all iterations until now: for a load below an earlier one it says no more
    /// than that so much was enough.
    pub reserved_bytes: Option<u64>,
}
