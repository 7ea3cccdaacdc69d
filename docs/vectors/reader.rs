// rustc --edition 2021 reader.rs && ./reader vectors/q4_0 all_codes hostile_scales scales_not_finite

use std::{env, fs, process::exit};

fn half(bits: u16) -> f32 {
    let sign = if bits & 0x8000 != 0 { -1.0 } else { 1.0 };
    let (e, m) = ((bits >> 10 & 31) as i32, (bits & 1023) as f32);
    match e {
        31 if m != 0.0 => f32::NAN,
        31 => sign * f32::INFINITY,
        0 => sign * m * 2f32.powi(-24),
        _ => sign * (1.0 + m / 1024.0) * 2f32.powi(e - 15),
    }
}

// Your decoder; this one is of q4_0.
const BYTES: usize = 18;
const ELEMENTS: usize = 32;
fn decode(block: &[u8], out: &mut [f32]) {
    let d = half(u16::from_le_bytes([block[0], block[1]]));
    for j in 0..16 {
        out[j] = d * ((block[2 + j] & 15) as f32 - 8.0);
        out[j + 16] = d * ((block[2 + j] >> 4) as f32 - 8.0);
    }
}

fn floats(path: String) -> Vec<f32> {
    let bytes = fs::read(path).expect("a file of vectors");
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn main() {
    let arguments: Vec<String> = env::args().collect(); // vectors/q4_0 all_codes hostile_scales …
    let mut status = 0;
    for name in &arguments[2..] {
        let file = |role: &str| format!("{}/{}.{}", arguments[1], name, role);
        let blocks = fs::read(file("blocks")).expect("a file of vectors");
        let (want, bound) = (floats(file("values")), floats(file("bounds")));
        let mut got = vec![0f32; want.len()];
        for (b, out) in blocks.chunks_exact(BYTES).zip(got.chunks_exact_mut(ELEMENTS)) {
            decode(b, out);
        }
        let fits = |i: usize| {
            let wild = !want[i].is_finite() || bound[i].is_infinite();
            (got[i] - want[i]).abs() <= bound[i] || (wild && !got[i].is_finite())
        };
        let bad = (0..want.len()).filter(|&i| !fits(i)).count();
        println!("{}: {} of {} values are wrong", name, bad, want.len());
        status |= (bad > 0) as i32;
    }
    exit(status);
}
