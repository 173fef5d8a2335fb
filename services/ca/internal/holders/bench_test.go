package holders

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/clock"
)

// real is a Registry on the machine's clock.
func real(b testing.TB) *fixture {
	return newFixture(b, func(c *Config) { c.Clock = clock.Real() })
}

// BenchmarkIssued is what recording a certificate costs the ca, without the wait for the record.
func BenchmarkIssued(b *testing.B) {
	f := real(b)
	certs := make([]Certificate, 10_000)
	for i := range certs {
		certs[i] = f.cert("a", inPod(fmt.Sprint("web-", i)))
		certs[i].NotAfter = time.Now().Add(ttl)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c := &certs[i%len(certs)]
		f.made++
		c.Fingerprint = Fingerprint{byte(f.made), byte(f.made >> 8), byte(f.made >> 16), byte(f.made >> 24), 1}
		c.At = time.Time{}
		f.issued(c)
		if i%1000 == 0 {
			f.flush()
		}
	}
}

// BenchmarkIssuedAndWritten has 64 requests in flight, which wait for their records.
func BenchmarkIssuedAndWritten(b *testing.B) {
	f := real(b)
	var mu sync.Mutex
	var took []time.Duration
	b.SetParallelism(64 / runtime.GOMAXPROCS(0))
	b.RunParallel(func(pb *testing.PB) {
		var mine []time.Duration
		for pb.Next() {
			mu.Lock()
			c := f.cert("a", nil)
			mu.Unlock()
			inPod(fmt.Sprint("web-", f.made%10_000))(&c)
			c.NotAfter, c.At = time.Now().Add(ttl), time.Time{}
			began := time.Now()
			f.Issued(c)
			mine = append(mine, time.Since(began))
		}
		mu.Lock()
		defer mu.Unlock()
		took = append(took, mine...)
	})
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
}

// BenchmarkBehind asks who of 10,000 is behind: nobody.
func BenchmarkBehind(b *testing.B) {
	f := real(b)
	for i := range 10_000 {
		c := f.cert("a", inPod(fmt.Sprint("web-", i)))
		c.NotAfter = time.Now().Add(ttl)
		f.issued(&c)
	}
	for b.Loop() {
		if got := f.Behind(0, 1); len(got) != 0 {
			b.Fatal(got)
		}
	}
}

// 10,000 Pods, each with a certificate and the one before, cost 6 MiB at most.
func TestMemoryOfTenThousandHolders(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Dir = "" })
	before := heap()
	for round := range 2 {
		for i := range 10_000 {
			f.issue(fmt.Sprint("account-", i%500), func(c *Certificate) {
				c.Pod = fmt.Sprintf("default/web-%d-7d4b9c6f5-abcde", i)
				c.PodUID = fmt.Sprintf("%08x-1c2d-4e5f-8a9b-0123456789ab", i)
				c.At = start.Add(time.Duration(round) * time.Minute)
			})
		}
	}
	cost := heap() - before
	t.Logf("%d KiB", cost>>10)
	if cost > 6<<20 {
		t.Errorf("%d KiB", cost>>10)
	}
	if got := f.Counts(0, 1).Total; got != 10_000 {
		t.Errorf("%d holders", got)
	}
	runtime.KeepAlive(f)
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
