//! A device that takes what Eq. 5 says, with the faults of real ones.

use loraloom_scheduler::{Coefficients, DeviceMemory, Load, Measurement, MemoryModel};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Numbers that look random and are the same everywhere (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    pub(crate) fn below(&mut self, count: u64) -> u64 {
        (self.unit() * count as f64) as u64
    }

    /// Of the standard normal distribution (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// What a device really takes; the model is not told.
#[derive(Debug, Clone)]
pub(crate) struct Truth {
    pub(crate) name: &'static str,
    pub(crate) b: [f64; 3],
    pub(crate) fixed_bytes: u64,
    pub(crate) limit_bytes: u64,
    /// Standard deviation of a measurement, relative to all of it.
    pub(crate) noise: f64,
    /// What pools reserve at a time; 0 is single bytes.
    pub(crate) page_bytes: u64,
    /// Most tasks at a time, and most tokens of one row.
    pub(crate) most_tasks: u64,
    pub(crate) longest_row: u64,
    /// Bytes of one adapter with its gradients and moments.
    pub(crate) adapter_bytes: u64,
}

/// Llama 7B in bfloat16 on a GPU of 48 GB.
pub(crate) fn seven_b() -> Truth {
    Truth {
        name: "7B on 48 GB",
        b: [6e8, 1.1e6, 60.0],
        fixed_bytes: 13_500_000_000,
        limit_bytes: 48_000_000_000,
        noise: 0.002,
        page_bytes: 0,
        most_tasks: 6,
        longest_row: 1024,
        adapter_bytes: 200_000_000,
    }
}

/// TinyLlama 1.1B in bfloat16 on a GPU of 24 GB.
pub(crate) fn tiny_llama() -> Truth {
    Truth {
        name: "TinyLlama on 24 GB",
        b: [3e8, 4.2e5, 20.0],
        fixed_bytes: 2_200_000_000,
        limit_bytes: 24_000_000_000,
        most_tasks: 8,
        longest_row: 2048,
        adapter_bytes: 80_000_000,
        ..seven_b()
    }
}

/// A model of a million parameters in 100 MB of a computer's memory.
pub(crate) fn tiny_on_cpu() -> Truth {
    Truth {
        name: "tiny on 100 MB",
        b: [1.5e6, 9e3, 8.0],
        fixed_bytes: 4_400_000,
        limit_bytes: 100_000_000,
        most_tasks: 8,
        longest_row: 256,
        adapter_bytes: 600_000,
        ..seven_b()
    }
}

impl Truth {
    pub(crate) fn coefficients(&self) -> Coefficients {
        Coefficients::new(self.b[0], self.b[1], self.b[2]).expect("sizes")
    }

    /// A model that is told each coefficient as so many times the truth.
    pub(crate) fn memory(&self, prior: [f64; 3]) -> DeviceMemory {
        let b: Vec<f64> = self.b.iter().zip(prior).map(|(b, f)| b * f).collect();
        let prior = Coefficients::new(b[0], b[1], b[2]).expect("sizes");
        let model = MemoryModel::new(prior, self.page_bytes);
        DeviceMemory::new(self.name, self.limit_bytes, self.fixed_bytes, 1.0, model)
            .expect("a share")
    }

    /// Some tasks of 1, 2, 4 or 8 rows of about equal length.
    pub(crate) fn load(&self, random: &mut Random) -> Load {
        let mut load = Load::default();
        for _ in 0..=random.below(self.most_tasks) {
            let length = self.longest_row >> random.below(5);
            for _ in 0..1 << random.below(4) {
                let tokens = (length as f64 * random.between(0.7, 1.0)) as u64;
                load.tokens += tokens;
                load.squared_tokens += tokens * tokens;
            }
            load.adapter_bytes += self.adapter_bytes;
        }
        load
    }

    /// A load with at most so many times the tokens and the squared tokens of the largest of `seen`.
    pub(crate) fn load_within(&self, random: &mut Random, seen: &[Load], times: f64) -> Load {
        let most = |term: fn(&Load) -> u64| seen.iter().map(term).max().unwrap_or(0) as f64 * times;
        let (tokens, squared) = (most(|load| load.tokens), most(|load| load.squared_tokens));
        loop {
            let load = self.load(random);
            if load.tokens as f64 <= tokens && load.squared_tokens as f64 <= squared {
                return load;
            }
        }
    }

    /// Most bytes in use while `load` trains.
    pub(crate) fn peak(&self, load: Load, random: &mut Random) -> u64 {
        let known = (self.fixed_bytes + load.adapter_bytes) as f64;
        let bytes = known + self.coefficients().bytes(load);
        (bytes * (1.0 + self.noise * random.normal())).round() as u64
    }

    /// The least that pools can hold for that.
    pub(crate) fn paged(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.page_bytes.max(1))
    }
}

pub(crate) fn peak(bytes: u64) -> Measurement {
    Measurement {
        peak_in_use_bytes: Some(bytes),
        reserved_bytes: None,
    }
}

pub(crate) fn reserved(bytes: u64) -> Measurement {
    Measurement {
        peak_in_use_bytes: None,
        reserved_bytes: Some(bytes),
    }
}
