//! Whether streams wait for each other. All work is done when its call returns, so nothing is computed
//! too early here: this says what would be on a GPU.
//!
//! Launches and copies are taken for ordered among themselves. A product by cuBLAS needs a stream that
//! waits for all of them, and what comes after a product has to wait for it.

use std::{
    cell::Cell,
    collections::HashMap,
    sync::{LazyLock, Mutex, PoisonError},
};

/// Counts of what a context was given.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    /// Launches and copies.
    launches: u64,
    /// Work on the streams of cuBLAS.
    products: u64,
}

impl Work {
    fn and(self, other: Self) -> Self {
        Self {
            launches: self.launches.max(other.launches),
            products: self.products.max(other.products),
        }
    }
}

/// The work of one context.
#[derive(Debug, Default)]
pub struct Order {
    given: Work,
    /// What launches and copies wait for.
    context: Work,
    /// What the products of a stream wait for, and they themselves.
    streams: HashMap<usize, Work>,
    events: HashMap<usize, Work>,
}

impl Order {
    /// # Errors
    /// If it does not wait for a product.
    pub fn launch(&mut self) -> Result<(), String> {
        self.given.launches += 1;
        match self.given.products - self.context.products {
            0 => Ok(()),
            missing => Err(format!("does not wait for {missing} products before it")),
        }
    }

    /// # Errors
    /// If its stream does not wait for a launch or copy.
    pub fn product(&mut self, stream: usize) -> Result<(), String> {
        self.given.products += 1;
        let own = self.streams.entry(stream).or_default();
        own.products = self.given.products;
        match self.given.launches - own.launches {
            0 => Ok(()),
            missing => Err(format!("does not wait for {missing} launches before it")),
        }
    }

    pub fn record_context(&mut self, event: usize) {
        self.events.insert(event, self.given);
    }

    pub fn record_stream(&mut self, event: usize, stream: usize) {
        let of_stream = self.streams.get(&stream).copied().unwrap_or_default();
        self.events.insert(event, of_stream);
    }

    pub fn stream_waits(&mut self, stream: usize, event: usize) {
        let recorded = self.events.get(&event).copied().unwrap_or_default();
        let own = self.streams.entry(stream).or_default();
        *own = own.and(recorded);
    }

    pub fn context_waits(&mut self, event: usize) {
        let recorded = self.events.get(&event).copied().unwrap_or_default();
        self.context = self.context.and(recorded);
    }
}

thread_local! {
    /// The context of this thread.
    pub static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Of the thread's context.
pub fn in_order<T>(work: impl FnOnce(&mut Order) -> T) -> T {
    static ORDERS: LazyLock<Mutex<HashMap<usize, Order>>> = LazyLock::new(Mutex::default);
    let mut orders = ORDERS.lock().unwrap_or_else(PoisonError::into_inner);
    work(orders.entry(CURRENT.get()).or_default())
}

#[cfg(test)]
mod tests {
    use super::Order;

    const STREAM: usize = 7;
    const BEFORE: usize = 1;
    const AFTER: usize = 2;

    #[test]
    fn a_product_between_launches_is_in_order() {
        let mut order = Order::default();
        for _ in 0..3 {
            order.launch().expect("after the product");
            order.record_context(BEFORE);
            order.stream_waits(STREAM, BEFORE);
            order.product(STREAM).expect("after the launch");
            order.record_stream(AFTER, STREAM);
            order.context_waits(AFTER);
        }
    }

    #[test]
    fn what_does_not_wait_is_found() {
        let mut order = Order::default();
        order.launch().expect("the first");
        order.record_context(BEFORE);
        order.launch().expect("no product yet");
        order.stream_waits(STREAM, BEFORE);
        let late = order.product(STREAM).expect_err("a launch too late");
        assert_eq!(late, "does not wait for 1 launches before it");
        order.record_stream(AFTER, STREAM);
        let early = order.launch().expect_err("nobody waits for the product");
        assert_eq!(early, "does not wait for 1 products before it");
        order.context_waits(AFTER);
        order.launch().expect("now it waits");
    }
}
