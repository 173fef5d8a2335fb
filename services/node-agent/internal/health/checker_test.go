package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/node-agent/internal/config"
)

// rig runs a Checker and records what it tells.
type rig struct {
	mu   sync.Mutex
	told []string
}

func (r *rig) tell(problem error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if problem == nil {
		r.told = append(r.told, "well")
	} else {
		r.told = append(r.told, problem.Error())
	}
}

func (r *rig) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.told...)
}

// want waits until the last words contain these, one for each call of Tell.
func (r *rig) want(t *testing.T, parts ...string) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		got := r.all()
		if len(got) != len(parts) {
			return fmt.Errorf("told %q, want %q", got, parts)
		}
		for i, p := range parts {
			if !strings.Contains(got[i], p) {
				return fmt.Errorf("told %q, want %q", got, parts)
			}
		}
		return nil
	})
}

func start(t *testing.T, p *networking.ReadinessProbe, change func(*Config)) *rig {
	t.Helper()
	r := &rig{}
	c := Config{
		Probe:     &config.ReadinessProbe{ReadinessProbe: p, Period: 10 * time.Millisecond, Timeout: testkit.Patience, Success: 1, Failure: 1},
		Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Tell: r.tell, Log: testkit.Logger(t),
	}
	if change != nil {
		change(&c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- New(c).Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

func port(t *testing.T, address string) uint32 {
	t.Helper()
	a, err := netip.ParseAddrPort(strings.TrimPrefix(strings.TrimPrefix(address, "https://"), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return uint32(a.Port())
}

func httpGet(get *networking.HTTPHealthCheckConfig) *networking.ReadinessProbe {
	return &networking.ReadinessProbe{HealthCheckMethod: &networking.ReadinessProbe_HttpGet{HttpGet: get}}
}

// A change is told once, after as many results in a row as the thresholds say.
func TestThresholds(t *testing.T) {
	var asked atomic.Int64
	// One letter for each probe: w well, u unwell; the last one for all others.
	answers := "uuw" + "wwuuw" + "uuuuwwww"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n := int(asked.Add(1)) - 1; n < len(answers) && answers[n] == 'u' {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(s.Close)
	r := start(t, httpGet(&networking.HTTPHealthCheckConfig{Port: port(t, s.URL)}),
		func(c *Config) { c.Probe.Success, c.Probe.Failure = 2, 3 })
	r.want(t, "well", "status 503", "well")
	seen := asked.Load()
	testkit.Eventually(t, testkit.Patience, func() error {
		if asked.Load() < seen+20 {
			return errors.New("no further probes")
		}
		return nil
	})
	r.want(t, "well", "status 503", "well")
}

// Every method says whether the application is well.
func TestMethods(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/slow":
			<-r.Context().Done()
		case r.URL.Path == "/checks" && (r.Host != "web.example" || r.Header.Get("X-A") != "b" || r.UserAgent() != userAgent ||
			r.URL.RawQuery != "q=1"):
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	t.Cleanup(plain.Close)
	secure := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(secure.Close)
	file := filepath.Join(t.TempDir(), "well")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	exec := func(command ...string) *networking.ReadinessProbe {
		return &networking.ReadinessProbe{
			HealthCheckMethod: &networking.ReadinessProbe_Exec{Exec: &networking.ExecHealthCheckConfig{Command: command}}}
	}
	tcp := func(p uint32, host string) *networking.ReadinessProbe {
		return &networking.ReadinessProbe{
			HealthCheckMethod: &networking.ReadinessProbe_TcpSocket{TcpSocket: &networking.TCPHealthCheckConfig{Port: p, Host: host}}}
	}
	gone := uint32(testkit.FreeAddress(t).Port())
	headers := []*networking.HTTPHeader{{Name: "host", Value: "web.example"}, {Name: "x-a", Value: "b"}}
	for _, tc := range []struct {
		name  string
		probe *networking.ReadinessProbe
		want  string
	}{
		{"http", httpGet(&networking.HTTPHealthCheckConfig{Port: port(t, plain.URL), Path: "checks?q=1", HttpHeaders: headers}), "well"},
		{"http slow", httpGet(&networking.HTTPHealthCheckConfig{Port: port(t, plain.URL), Path: "/slow"}), "no answer within 300ms"},
		{"https", httpGet(&networking.HTTPHealthCheckConfig{Port: port(t, secure.URL), Scheme: "HTTPS"}), "well"},
		{"http refused", httpGet(&networking.HTTPHealthCheckConfig{Port: gone}), "connection refused"},
		{"tcp", tcp(port(t, plain.URL), "localhost"), "well"},
		{"tcp refused", tcp(gone, ""), "connection refused"},
		{
			"grpc of http", &networking.ReadinessProbe{
				HealthCheckMethod: &networking.ReadinessProbe_Grpc{Grpc: &networking.GrpcHealthCheckConfig{Port: port(t, plain.URL)}}}, "rror"},
		{"exec", exec("test", "-e", file), "well"},
		{"exec fails", exec("sh", "-c", "echo the disk is full >&2; exit 3"), "exit status 3: the disk is full"},
		{"exec hangs, with a child", exec("sh", "-c", "sleep 1000 & sleep 1000"), "no answer within 300ms: sh"},
		{"no program", exec("/nowhere"), "no such file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := start(t, tc.probe, func(c *Config) {
				if strings.Contains(tc.want, "300ms") {
					c.Probe.Timeout = 300 * time.Millisecond
				}
				c.Probe.Period = testkit.Patience
			})
			r.want(t, tc.want)
		})
	}
}

// A workload whose proxy is not ready is not well, and a reason of any length is told short.
func TestTheProxyCounts(t *testing.T) {
	var ready atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(s.Close)
	r := start(t, httpGet(&networking.HTTPHealthCheckConfig{Port: port(t, s.URL)}), func(c *Config) {
		c.Proxy = func(context.Context) error {
			if ready.Load() {
				return nil
			}
			return errors.New(strings.Repeat("é", maxMessage))
		}
	})
	r.want(t, "the proxy is not ready: é")
	if n := len(r.all()[0]); n > maxMessage {
		t.Errorf("a reason of %d bytes", n)
	}
	ready.Store(true)
	r.want(t, "the proxy is not ready", "well")
}
