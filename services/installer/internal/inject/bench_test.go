package inject_test

import (
	"encoding/json"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/services/installer/internal/inject"
)

// goal is how many injections one second of one core must do.
const goal = 200

// BenchmarkInjection is one admission without HTTP: the Pod as the API server sends it, its injection, the patch. It
// counts the time of the processor, so that other work on the machine does not count.
func BenchmarkInjection(b *testing.B) {
	config := configOf(b, "defaultConfig: {proxyMetadata: {A: b}}")
	pod := podOf(b, `prometheus.io/port: "80", proxy.istio.io/config: "concurrency: 2"`,
		`containers: [{name: web, image: nginx, ports: [{containerPort: 80, name: http}], readinessProbe: {httpGet: {path: /r, port: http}}, livenessProbe: {grpc: {port: 9}}}, {name: log, image: x}]`)
	before, err := json.Marshal(pod)
	if err != nil {
		b.Fatal(err)
	}
	start, n := processorTime(b), 0
	for b.Loop() {
		n++
		r, err := config.Inject(inject.Request{Pod: pod})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := inject.Patch(before, r.Pod); err != nil {
			b.Fatal(err)
		}
	}
	rate := float64(n) / (processorTime(b) - start).Seconds()
	b.ReportMetric(rate, "injections/s/core")
	if n >= goal && rate < goal {
		b.Errorf("%.0f injections a second of a core, want %d", rate, goal)
	}
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
