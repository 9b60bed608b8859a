#![no_main]
use windlass::internals::wire::frame::fuzz_frame as fuzz;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz(bytes, windlass_fuzz::measure));
