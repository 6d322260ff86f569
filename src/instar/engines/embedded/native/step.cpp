// One decode step: a token of each of B streams through a model of the Llama family, on a CPU.
//
// The same function as lean.py, which stays the reference. At one token a step everything is bound by reading the
// weights from memory, so each weight is read once, in order, for all rows; what is between two products stays in the
// cache. Weights, keys and values are bf16; every sum is fp32. A value is rounded to bf16 in three places only: where a
// product reads it, where it is stored as key or value, and between the two halves of a LoRA term.
//
// A row's numbers do not depend on the other rows: each sums in the same order alone and in company.
//
// Shapes: B rows, H query heads, K key-value heads, G = H / K, D head size, S tokens so far, R ranks.
// Plain C at the border; step.py mirrors the structs.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

using bf16 = uint16_t;

// ── what the caller passes ──────────────────────────────────────────────────────────────────────────────────────────

extern "C" {

// W (n, k) of y = x·Wᵀ + bias. `block` outputs lie side by side, two inputs of each together: element (i, j) stands at
// [i / block][j / 2][i % block][j % 2], rows and columns padded with zeros. block = 1: row by row, not padded.
struct Matrix {
  const bf16* data;
  const float* bias;  // (n), or null
  int32_t n, k, block, k_padded;
};

struct Layer {
  Matrix qkv, out, gate_up, down;
  const float *norm_in, *norm_mid;
  const float *norm_q, *norm_k;  // (D), or null
};

struct Model {
  int32_t layers, heads, kv_heads, dim, hidden, inner, vocab;
  float eps;
  const Layer* layer;
  Matrix head;
  const float* norm_last;
  const bf16* embedding;    // (vocab, hidden)
  const bf16 *cos, *sin;    // (positions, D); the first half of sin has its sign turned
};

// One adapter's term for one product: (x·downᵀ)·upᵀ. `up` has one piece for each chunk of the product's outputs: the
// `ranks[c]` ranks from `first[c]` on that are not zero there, from element `offset[c]`, laid out as in Matrix.
struct Lora {
  Matrix down;  // (R, k); no data: this product has no term
  const bf16* up;
  const int32_t *first, *ranks;
  const int64_t* offset;
};

struct Adapter {
  int32_t widest;     // the largest R, rounded up to the blocks of `down`
  const Lora* terms;  // qkv, out, gate_up, down of each layer, then the head
};

struct Row {
  bf16* cache;  // (layers, 2K, capacity, D): keys, then values
  int64_t capacity;
  const Adapter* adapter;  // null: base. Rows of one adapter stand side by side
  int32_t token, position;
};

}  // extern "C"

namespace {

enum Variant { kPortable = 0, kAvx512 = 1, kAmx = 2 };

constexpr int kRows = 16;    // rows that go through a block of weights together: those of an AMX tile
constexpr int kWidth = 64;   // outputs of a block, at most
constexpr int kKeys = 128;   // keys whose scores are held at a time
constexpr int kSpins = 2000; // looks for work before a thread sleeps: longer than any pause within a step

constexpr int rounded_up(int value, int to) { return (value + to - 1) / to * to; }

// ── sixteen floats at a time: the compiler makes of them what the processor has ─────────────────────────────────────

typedef float Vec __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
constexpr int kLanes = 16;

inline Vec load(const float* at) {
  Vec found;
  std::memcpy(&found, at, sizeof found);
  return found;
}

inline void store(float* at, Vec value) { std::memcpy(at, &value, sizeof value); }

inline Bits load_bits(const bf16* at) {
  Bits found;
  std::memcpy(&found, at, sizeof found);
  return found;
}

inline Vec widen(const bf16* at) {
  Halves found;
  std::memcpy(&found, at, sizeof found);
  return (Vec)(__builtin_convertvector(found, Bits) << 16);
}

inline float total(Vec value) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)value);
#else
  float found = 0;
  for (int i = 0; i < kLanes; ++i) found += value[i];
  return found;
#endif
}

inline float as_float(uint32_t bits) {
  float found;
  std::memcpy(&found, &bits, sizeof found);
  return found;
}

inline float widen(bf16 value) { return as_float(uint32_t(value) << 16); }

// To the nearest, ties to even. A NaN stays one: without the test, rounding could carry it over into a number.
inline bf16 narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return bf16(value != value ? 0x7fc0 : rounded);
}

// e^x to 2 units in the last place, without a branch, so that loops over it become vector code (Cephes' expf).
// Below −87 it stays at e^−87. What is not finite gives NaN: a broken adapter must be seen.
inline float exp_of(float x) {
  const float bound = x < -87.f ? -87.f : x > 88.f ? 88.f : x;
  const float whole = (bound * 1.44269504f + 12582912.f) - 12582912.f;  // the nearest integer to x / ln 2
  const float r = (bound - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  const float power = as_float(uint32_t(int32_t(whole) + 127) << 23);
  return p * power + (x - x);
}

// ── the product of up to 16 rows with one block of weights: acc (rows, 64) += x (rows, k)·Wᵀ ────────────────────────

struct DotPortable {
  static void add(Vec& sum, Bits w, uint32_t x) {
    sum += as_float(x << 16) * (Vec)(w << 16);
    sum += as_float(x & 0xffff0000u) * (Vec)(w & 0xffff0000u);
  }
};

#if defined(__AVX512BF16__)
struct DotAvx512 {
  static void add(Vec& sum, Bits w, uint32_t x) {
    sum = (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)_mm512_set1_epi32(int(x)));
  }
};
#endif

template <class Dot, int Rows, int Columns>
inline void tile(const bf16* x, int ldx, const bf16* w, int width, int k, float* acc) {
  Vec sum[Rows][Columns];
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Columns; ++c) sum[r][c] = load(acc + r * kWidth + c * kLanes);
  for (int j = 0; j < k; j += 2) {
    Bits weights[Columns];
    for (int c = 0; c < Columns; ++c) weights[c] = load_bits(w + int64_t(j) * width + c * 2 * kLanes);
    for (int r = 0; r < Rows; ++r) {
      uint32_t pair;
      std::memcpy(&pair, x + int64_t(r) * ldx + j, sizeof pair);
      for (int c = 0; c < Columns; ++c) Dot::add(sum[r][c], weights[c], pair);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Columns; ++c) store(acc + r * kWidth + c * kLanes, sum[r][c]);
}

template <class Dot, int Columns>
void rows_by_block(const bf16* x, int ldx, int rows, const bf16* w, int width, int k, float* acc) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) tile<Dot, 4, Columns>(x + int64_t(r) * ldx, ldx, w, width, k, acc + r * kWidth);
  for (; r + 2 <= rows; r += 2) tile<Dot, 2, Columns>(x + int64_t(r) * ldx, ldx, w, width, k, acc + r * kWidth);
  if (r < rows) tile<Dot, 1, Columns>(x + int64_t(r) * ldx, ldx, w, width, k, acc + r * kWidth);
}

template <class Dot>
void block_in_vectors(const bf16* x, int ldx, int rows, const bf16* w, int width, int k, float* acc) {
  switch (width / kLanes) {
    case 4: return rows_by_block<Dot, 4>(x, ldx, rows, w, width, k, acc);
    case 3: return rows_by_block<Dot, 3>(x, ldx, rows, w, width, k, acc);
    case 2: return rows_by_block<Dot, 2>(x, ldx, rows, w, width, k, acc);
    default: return rows_by_block<Dot, 1>(x, ldx, rows, w, width, k, acc);
  }
}

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define INSTAR_AMX 1

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_a_row[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 to 3 are sums (rows × 16 outputs), 4 is x (rows × 32 inputs), 5 to 7 weights (16 pairs × 16 outputs).
inline void configure_tiles(int rows) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.bytes_a_row[t] = 64;
    config.rows[t] = uint8_t(t < 5 ? rows : 16);
  }
  _tile_loadconfig(&config);
}

template <int Columns>
void block_in_tiles(const bf16* x, int ldx, int rows, const bf16* w, int k, float* acc) {
  constexpr int kBytes = Columns * 64;  // from one pair of inputs to the next
  constexpr int kAhead = 4096;          // tiles are loaded in an order that the processor does not foresee: 16 % slower
  configure_tiles(rows);
  _tile_loadd(0, acc, kWidth * 4);
  if (Columns > 1) _tile_loadd(1, acc + 16, kWidth * 4);
  if (Columns > 2) _tile_loadd(2, acc + 32, kWidth * 4);
  if (Columns > 3) _tile_loadd(3, acc + 48, kWidth * 4);
  for (int j = 0; j < k; j += 32, w += 32 * Columns * kLanes) {
    for (int line = 0; line < 16 * Columns; ++line)
      _mm_prefetch(reinterpret_cast<const char*>(w) + kAhead + 64 * line, _MM_HINT_T1);
    _tile_loadd(4, x + j, ldx * 2);
    _tile_loadd(5, w, kBytes);
    _tile_dpbf16ps(0, 4, 5);
    if (Columns > 1) {
      _tile_loadd(6, w + 32, kBytes);
      _tile_dpbf16ps(1, 4, 6);
    }
    if (Columns > 2) {
      _tile_loadd(7, w + 64, kBytes);
      _tile_dpbf16ps(2, 4, 7);
    }
    if (Columns > 3) {
      _tile_loadd(5, w + 96, kBytes);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_stored(0, acc, kWidth * 4);
  if (Columns > 1) _tile_stored(1, acc + 16, kWidth * 4);
  if (Columns > 2) _tile_stored(2, acc + 32, kWidth * 4);
  if (Columns > 3) _tile_stored(3, acc + 48, kWidth * 4);
  _tile_release();
}
#endif

// Without an order in memory that suits vectors of outputs, the vectors run along the inputs.
void block_by_row(const bf16* x, int ldx, int rows, const bf16* w, int outputs, int k, float* acc) {
  for (int c = 0; c < outputs; ++c, w += k) {
    for (int r = 0; r < rows; ++r) {
      const bf16* from = x + int64_t(r) * ldx;
      Vec sum = {};
      int j = 0;
      for (; j + kLanes <= k; j += kLanes) sum += widen(from + j) * widen(w + j);
      float rest = 0;
      for (; j < k; ++j) rest += widen(from[j]) * widen(w[j]);
      acc[r * kWidth + c] += total(sum) + rest;
    }
  }
}

void block(const bf16* x, int ldx, int rows, const bf16* w, int width, int k, float* acc, Variant variant) {
#if defined(INSTAR_AMX)
  if (variant == kAmx && k % 32 == 0) {
    switch (width / kLanes) {
      case 4: return block_in_tiles<4>(x, ldx, rows, w, k, acc);
      case 3: return block_in_tiles<3>(x, ldx, rows, w, k, acc);
      case 2: return block_in_tiles<2>(x, ldx, rows, w, k, acc);
      default: return block_in_tiles<1>(x, ldx, rows, w, k, acc);
    }
  }
#endif
#if defined(__AVX512BF16__)
  if (variant != kPortable) return block_in_vectors<DotAvx512>(x, ldx, rows, w, width, k, acc);
#endif
  block_in_vectors<DotPortable>(x, ldx, rows, w, width, k, acc);
}

int width_of(const Matrix& m) { return m.block > 1 ? m.block : kWidth; }
int chunks_of(const Matrix& m) { return (m.n + width_of(m) - 1) / width_of(m); }
int outputs_of(const Matrix& m, int chunk) { return std::min(width_of(m), m.n - chunk * width_of(m)); }

void add_chunk(const Matrix& m, int chunk, const bf16* x, int ldx, int rows, float* acc, Variant variant) {
  const bf16* w = m.data + int64_t(chunk) * width_of(m) * m.k_padded;
  if (m.block > 1) return block(x, ldx, rows, w, m.block, m.k_padded, acc, variant);
  block_by_row(x, ldx, rows, w, outputs_of(m, chunk), m.k, acc);
}

void begin_chunk(const Matrix& m, int chunk, int rows, float* acc) {
  std::fill(acc, acc + rows * kWidth, 0.f);
  if (m.bias == nullptr) return;
  const float* bias = m.bias + chunk * width_of(m);
  for (int r = 0; r < rows; ++r) std::copy(bias, bias + outputs_of(m, chunk), acc + r * kWidth);
}

// ── threads ─────────────────────────────────────────────────────────────────────────────────────────────────────────

// Threads that take chunks of work one by one. The caller waits for chunks, not for threads: one that the system has put
// aside, on a machine where others compute too, holds nothing up unless it has a chunk in its hands.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { serve(); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> held(lock_);
      stopping_ = true;
    }
    awake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  // body(0) … body(count − 1), each once, in any order; all are done when this returns.
  template <class Body>
  void run(int count, const Body& body) {
    if (workers_.empty() || count == 1) {
      for (int i = 0; i < count; ++i) body(i);
      return;
    }
    call_ = [](const void* of, int i) { (*static_cast<const Body*>(of))(i); };
    body_ = &body;
    done_.store(0, std::memory_order_relaxed);
    const uint64_t epoch = (ticket_.load(std::memory_order_relaxed) >> kEpochAt) + 1;
    ticket_.store(epoch << kEpochAt | uint64_t(count) << kCountAt);
    if (sleeping_.load() > 0) {
      std::lock_guard<std::mutex> held(lock_);
      awake_.notify_all();
    }
    take_chunks();
    for (int looks = 0; done_.load(std::memory_order_acquire) < count; ++looks) rest(looks);
  }

 private:
  // A ticket says which run it is of (24 bits), how many chunks that has (20), and which is next (20): a thread that
  // comes late finds either a chunk of the run under way, or nothing.
  static constexpr int kEpochAt = 40, kCountAt = 20;
  static constexpr uint64_t kMask = (1u << 20) - 1;

  static void rest(int looks) {
    if (looks > kSpins) return std::this_thread::yield();
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

  void take_chunks() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while ((ticket & kMask) < (ticket >> kCountAt & kMask)) {
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
      call_(body_, int(ticket & kMask));
      done_.fetch_add(1, std::memory_order_release);
      ticket = ticket_.load(std::memory_order_acquire);
    }
  }

  void serve() {
    uint64_t seen = 0;
    for (;;) {
      const uint64_t epoch = wait_for_other(seen);
      if (epoch == seen) return;
      seen = epoch;
      take_chunks();
    }
  }

  // Looks for a while, then sleeps. Returns `seen` when the pool is at its end.
  uint64_t wait_for_other(uint64_t seen) {
    for (int looks = 0; looks < kSpins; ++looks) {
      if (const uint64_t epoch = ticket_.load(std::memory_order_acquire) >> kEpochAt; epoch != seen) return epoch;
      rest(0);
    }
    std::unique_lock<std::mutex> held(lock_);
    sleeping_.fetch_add(1);
    awake_.wait(held, [&] { return stopping_ || ticket_.load() >> kEpochAt != seen; });
    sleeping_.fetch_sub(1);
    return stopping_ ? seen : ticket_.load() >> kEpochAt;
  }

  std::vector<std::thread> workers_;
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int> done_{0}, sleeping_{0};
  void (*call_)(const void*, int) = nullptr;
  const void* body_ = nullptr;
  std::mutex lock_;
  std::condition_variable awake_;
  bool stopping_ = false;
};

// ── between the products ────────────────────────────────────────────────────────────────────────────────────────────

float scale_to_unit(const float* x, int n, float eps) {
  Vec squares = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) squares += load(x + i) * load(x + i);
  float rest = 0;
  for (; i < n; ++i) rest += x[i] * x[i];
  return 1.f / std::sqrt((total(squares) + rest) / float(n) + eps);
}

// Rounded for a product to read, with zeros up to the width that its blocks may have.
template <class Value>
void write_input(bf16* x, int n, const Value& value) {
  for (int i = 0; i < n; ++i) x[i] = narrow(value(i));
  std::fill(x + n, x + rounded_up(n, kWidth), bf16(0));
}

// One head of `from`, normed if the model does so, rotated to its position and scaled: to (D).
void rotate(const float* from, const float* norm, float eps, const bf16* cos, const bf16* sin, int dim, float scale,
            float* to) {
  float normed[1024];
  if (norm != nullptr) {
    const float unit = scale_to_unit(from, dim, eps);
    for (int d = 0; d < dim; ++d) normed[d] = from[d] * unit * norm[d];
    from = normed;
  }
  const int half = dim / 2;
  for (int d = 0; d < half; ++d) to[d] = (from[d] * widen(cos[d]) + from[d + half] * widen(sin[d])) * scale;
  for (int d = half; d < dim; ++d) to[d] = (from[d] * widen(cos[d]) + from[d - half] * widen(sin[d])) * scale;
}

// scores (G, kKeys) = query (G, D) · keys (count, D)ᵀ
template <int G>
void score(const float* query, const bf16* keys, int count, int dim, float* scores) {
  for (int s = 0; s < count; ++s, keys += dim) {
    Vec sum[G] = {};
    float rest[G] = {};
    int d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      const Vec key = widen(keys + d);
      for (int g = 0; g < G; ++g) sum[g] += key * load(query + g * dim + d);
    }
    for (; d < dim; ++d)
      for (int g = 0; g < G; ++g) rest[g] += widen(keys[d]) * query[g * dim + d];
    for (int g = 0; g < G; ++g) scores[g * kKeys + s] = total(sum[g]) + rest[g];
  }
}

// mixed (G, D) += weights (G, kKeys) · values (count, D)
template <int G>
void mix(const float* weights, const bf16* values, int count, int dim, float* mixed) {
  int d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    Vec sum[G];
    for (int g = 0; g < G; ++g) sum[g] = load(mixed + g * dim + d);
    for (int s = 0; s < count; ++s) {
      const Vec value = widen(values + int64_t(s) * dim + d);
      for (int g = 0; g < G; ++g) sum[g] += weights[g * kKeys + s] * value;
    }
    for (int g = 0; g < G; ++g) store(mixed + g * dim + d, sum[g]);
  }
  for (; d < dim; ++d)
    for (int s = 0; s < count; ++s)
      for (int g = 0; g < G; ++g) mixed[g * dim + d] += weights[g * kKeys + s] * widen(values[int64_t(s) * dim + d]);
}

// Scores of one query become weights relative to the largest so far (Milakov and Gimelshein 2018); what was summed under
// an older one shrinks with it.
void weigh(float* scores, int count, int dim, float& largest, float& mass, float* mixed) {
  const int padded = rounded_up(count, kLanes);
  for (int s = count; s < padded; ++s) scores[s] = -1e30f;
  Vec most = load(scores);
  for (int s = kLanes; s < padded; s += kLanes) most = load(scores + s) > most ? load(scores + s) : most;
  float top = most[0];
  for (int i = 1; i < kLanes; ++i) top = std::max(top, most[i]);
  if (mass > 0 && largest > top) top = largest;
  const float shrink = mass > 0 ? exp_of(largest - top) : 0.f;
  for (int s = 0; s < padded; ++s) scores[s] = exp_of(scores[s] - top);
  Vec sum = {};
  for (int s = 0; s < padded; s += kLanes) sum += load(scores + s);
  for (int d = 0; d < dim; ++d) mixed[d] *= shrink;
  mass = mass * shrink + total(sum);
  largest = top;
}

// The G ≤ 4 queries (G, D) of one key head over `count` tokens: to `mixed` (G, D).
template <int G>
void attend(const float* query, const bf16* keys, const bf16* values, int count, int dim, float* mixed) {
  alignas(64) float scores[G * kKeys];
  float largest[G] = {}, mass[G] = {};
  std::fill(mixed, mixed + G * dim, 0.f);
  for (int from = 0; from < count; from += kKeys) {
    const int some = std::min(kKeys, count - from);
    score<G>(query, keys + int64_t(from) * dim, some, dim, scores);
    for (int g = 0; g < G; ++g) weigh(scores + g * kKeys, some, dim, largest[g], mass[g], mixed + g * dim);
    mix<G>(scores, values + int64_t(from) * dim, some, dim, mixed);
  }
  for (int g = 0; g < G; ++g)
    for (int d = 0; d < dim; ++d) mixed[g * dim + d] /= mass[g];
}

void attend(int queries, const float* query, const bf16* keys, const bf16* values, int count, int dim, float* mixed) {
  for (int g = 0; g < queries; g += 4) {
    const float* q = query + g * dim;
    float* to = mixed + g * dim;
    switch (std::min(4, queries - g)) {
      case 4: attend<4>(q, keys, values, count, dim, to); break;
      case 3: attend<3>(q, keys, values, count, dim, to); break;
      case 2: attend<2>(q, keys, values, count, dim, to); break;
      default: attend<1>(q, keys, values, count, dim, to);
    }
  }
}

// ── the step ────────────────────────────────────────────────────────────────────────────────────────────────────────

class Step {
 public:
  Step(const Model& model, Variant variant, int threads) : model_(model), variant_(variant), pool_(threads) {
    widest_ = rounded_up(std::max({model.hidden, model.inner, model.heads * model.dim}), kWidth);
  }

  void run(const Row* rows, int count, float* logits) {
    begin(rows, count);
    for (int l = 0; l < model_.layers; ++l) layer(l);
    norm(model_.norm_last);
    const int64_t vocab = model_.vocab;
    product(model_.head, 4 * model_.layers, [&](int row, int at, int n, const float* sums) {
      std::copy(sums, sums + n, logits + row * vocab + at);
    });
  }

 private:
  struct Group {  // rows [start, stop) of one adapter
    int start, stop;
    const Lora* terms;
  };

  void begin(const Row* rows, int count) {
    rows_ = rows;
    count_ = count;
    groups_.clear();
    int ranks = 0;
    for (int r = 0; r < count; ++r) {
      const Adapter* adapter = rows[r].adapter;
      if (adapter == nullptr) continue;
      ranks = std::max(ranks, int(adapter->widest));
      if (!groups_.empty() && groups_.back().stop == r && groups_.back().terms == adapter->terms)
        groups_.back().stop = r + 1;
      else
        groups_.push_back({r, r + 1, adapter->terms});
    }
    ranks_ = ranks;
    residual_.resize(size_t(count) * model_.hidden);
    x_.resize(size_t(count) * widest_);
    y_.resize(size_t(count) * std::max(2 * model_.inner, (model_.heads + 2 * model_.kv_heads) * model_.dim));
    inner_.resize(size_t(count) * ranks);
    for (int r = 0; r < count; ++r) {
      const bf16* from = model_.embedding + int64_t(rows[r].token) * model_.hidden;
      for (int i = 0; i < model_.hidden; ++i) residual_[size_t(r) * model_.hidden + i] = widen(from[i]);
    }
  }

  void layer(int l) {
    const Layer& weights = model_.layer[l];
    const int width = (model_.heads + 2 * model_.kv_heads) * model_.dim, inner = model_.inner;
    const auto to_residual = [&](int row, int at, int n, const float* sums) {
      float* to = residual_.data() + size_t(row) * model_.hidden + at;
      for (int i = 0; i < n; ++i) to[i] += sums[i];
    };
    const auto to_y = [&](int stride) {
      return [this, stride](int row, int at, int n, const float* sums) {
        std::copy(sums, sums + n, y_.data() + size_t(row) * stride + at);
      };
    };
    norm(weights.norm_in);
    product(weights.qkv, 4 * l, to_y(width));
    attention(l);
    product(weights.out, 4 * l + 1, to_residual);
    norm(weights.norm_mid);
    product(weights.gate_up, 4 * l + 2, to_y(2 * inner));
    pool_.run(count_, [&](int row) {
      const float *gate = y_.data() + size_t(row) * 2 * inner, *up = gate + inner;
      write_input(x_of(row), inner, [&](int i) { return gate[i] / (1.f + exp_of(-gate[i])) * up[i]; });
    });
    product(weights.down, 4 * l + 3, to_residual);
  }

  bf16* x_of(int row) { return x_.data() + size_t(row) * widest_; }

  void norm(const float* weight) {
    pool_.run(count_, [&](int row) {
      const float* from = residual_.data() + size_t(row) * model_.hidden;
      const float unit = scale_to_unit(from, model_.hidden, model_.eps);
      write_input(x_of(row), model_.hidden, [&](int i) { return from[i] * unit * weight[i]; });
    });
  }

  // x·Wᵀ + bias + LoRA term in fp32, then finish(row, first output, outputs, sums). `which` counts products.
  template <class Finish>
  void product(const Matrix& m, int which, const Finish& finish) {
    lora_down(which);
    pool_.run(chunks_of(m), [&](int chunk) {
      alignas(64) float acc[kRows * kWidth];
      for (int top = 0; top < count_; top += kRows) {
        const int rows = std::min(kRows, count_ - top);
        begin_chunk(m, chunk, rows, acc);
        add_chunk(m, chunk, x_of(top), widest_, rows, acc, variant_);
        lora_up(which, chunk, width_of(m), top, rows, acc);
        for (int r = 0; r < rows; ++r) finish(top + r, chunk * width_of(m), outputs_of(m, chunk), acc + r * kWidth);
      }
    });
  }

  // x·downᵀ of each group's rows, rounded: to inner_ (B, R).
  void lora_down(int which) {
    for (const Group& group : groups_) {
      const Matrix& down = group.terms[which].down;
      if (down.data == nullptr) continue;
      pool_.run(chunks_of(down), [&](int chunk) {
        alignas(64) float acc[kRows * kWidth];
        for (int top = group.start; top < group.stop; top += kRows) {
          const int rows = std::min(kRows, group.stop - top);
          begin_chunk(down, chunk, rows, acc);
          add_chunk(down, chunk, x_of(top), widest_, rows, acc, variant_);
          for (int r = 0; r < rows; ++r) {
            bf16* to = inner_.data() + size_t(top + r) * ranks_ + chunk * down.block;
            for (int i = 0; i < down.block; ++i) to[i] = narrow(acc[r * kWidth + i]);
          }
        }
      });
    }
  }

  // acc (rows, 64) += inner_·upᵀ of those of the rows [top, top + rows) that have a term.
  void lora_up(int which, int chunk, int width, int top, int rows, float* acc) {
    for (const Group& group : groups_) {
      const Lora& term = group.terms[which];
      const int start = std::max(group.start, top), stop = std::min(group.stop, top + rows);
      if (term.down.data == nullptr || start >= stop || term.ranks[chunk] == 0) continue;
      const bf16* from = inner_.data() + size_t(start) * ranks_ + term.first[chunk];
      block(from, ranks_, stop - start, term.up + term.offset[chunk], width, term.ranks[chunk],
            acc + (start - top) * kWidth, variant_);
    }
  }

  // Rotates queries and keys of y_, stores keys and values, and attends: y_ → x_ (B, H·D).
  void attention(int l) {
    const int dim = model_.dim, kv_heads = model_.kv_heads, groups = model_.heads / kv_heads;
    const Layer& weights = model_.layer[l];
    const float scale = 1.f / std::sqrt(float(dim));
    pool_.run(count_ * kv_heads, [&](int task) {
      const int r = task / kv_heads, head = task % kv_heads;
      const Row& row = rows_[r];
      const float* y = y_.data() + size_t(r) * (model_.heads + 2 * kv_heads) * dim;
      const bf16 *cos = model_.cos + int64_t(row.position) * dim, *sin = model_.sin + int64_t(row.position) * dim;
      bf16* keys = row.cache + (int64_t(l) * 2 * kv_heads + head) * row.capacity * dim;
      bf16* values = keys + int64_t(kv_heads) * row.capacity * dim;
      thread_local std::vector<float> scratch;
      scratch.resize(size_t(2 * groups + 1) * dim);
      float *query = scratch.data(), *mixed = query + groups * dim, *key = mixed + groups * dim;
      for (int g = 0; g < groups; ++g)
        rotate(y + (head * groups + g) * dim, weights.norm_q, model_.eps, cos, sin, dim, scale, query + g * dim);
      rotate(y + (model_.heads + head) * dim, weights.norm_k, model_.eps, cos, sin, dim, 1.f, key);
      const float* value = y + (model_.heads + kv_heads + head) * dim;
      for (int d = 0; d < dim; ++d) {
        keys[int64_t(row.position) * dim + d] = narrow(key[d]);
        values[int64_t(row.position) * dim + d] = narrow(value[d]);
      }
      attend(groups, query, keys, values, row.position + 1, dim, mixed);
      bf16* to = x_of(r) + head * groups * dim;
      for (int i = 0; i < groups * dim; ++i) to[i] = narrow(mixed[i]);
      if (head == kv_heads - 1) std::fill(to + groups * dim, x_of(r) + rounded_up(model_.heads * dim, kWidth), bf16(0));
    });
  }

  const Model& model_;
  const Variant variant_;
  Pool pool_;
  int widest_;  // elements from one row of x_ to the next
  const Row* rows_ = nullptr;
  int count_ = 0, ranks_ = 0;
  std::vector<Group> groups_;
  std::vector<float> residual_, y_;
  std::vector<bf16> x_, inner_;
};

// ── what this processor and this system allow ───────────────────────────────────────────────────────────────────────

#if defined(INSTAR_AMX)
// Linux gives the tile registers only to a process that asks for them.
bool amx_is_granted() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return false;  // bf16, tile
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
#endif

}  // namespace

extern "C" {

// A bit for each Variant that was compiled in and can run here.
int instar_variants() {
  int found = 1 << kPortable;
#if defined(__AVX512BF16__)
  unsigned a, b, c, d;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1)) found |= 1 << kAvx512;
#endif
#if defined(INSTAR_AMX)
  if (amx_is_granted()) found |= 1 << kAmx;
#endif
  return found;
}

// `model` must outlive what is returned.
void* instar_open(const Model* model, int variant, int threads) {
  return new Step(*model, Variant(variant), threads);
}

void instar_close(void* step) { delete static_cast<Step*>(step); }

// Logits (B, vocab) after one token of each row. One call at a time.
void instar_decode(void* step, const Row* rows, int count, float* logits) {
  static_cast<Step*>(step)->run(rows, count, logits);
}

// y (rows, n) = x (rows, ldx)·Wᵀ + bias: for checks.
void instar_multiply(const Matrix* m, const bf16* x, int ldx, int rows, float* y, int variant) {
  alignas(64) float acc[kRows * kWidth];
  for (int chunk = 0; chunk < chunks_of(*m); ++chunk) {
    for (int top = 0; top < rows; top += kRows) {
      const int some = std::min(kRows, rows - top);
      begin_chunk(*m, chunk, some, acc);
      add_chunk(*m, chunk, x + int64_t(top) * ldx, ldx, some, acc, Variant(variant));
      for (int r = 0; r < some; ++r)
        std::copy(acc + r * kWidth, acc + r * kWidth + outputs_of(*m, chunk),
                  y + int64_t(top + r) * m->n + chunk * width_of(*m));
    }
  }
}

}  // extern "C"
