#![no_main]
use windlass::internals::wire::remoting::record::fuzz_records as fuzz;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz(bytes, windlass_fuzz::measure));
