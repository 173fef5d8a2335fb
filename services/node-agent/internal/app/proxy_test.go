package app_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/node-agent/internal/app"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/envoy"
	"fairlead.dev/services/node-agent/internal/statedir"
)

// envoyBinary is $ENVOY or the one that "make tools" installs.
func envoyBinary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("ENVOY"); path != "" {
		return path
	}
	path, err := filepath.Abs("../../../../.tools/envoy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath(path); err != nil {
		t.Skipf("no Envoy: %v: run make tools or set ENVOY", err)
	}
	return path
}

// proxy is a running agent with its Envoy.
type proxy struct {
	t      *testing.T
	ip     netip.Addr
	config *config.Config
	admin  *envoy.Admin
	stop   context.CancelFunc
	log    *logWatch
	// ended receives what app.Run returned.
	ended chan error
}

// loopbackIP is an address that no other test is likely to use, so that the
// standard ports are free.
func loopbackIP() netip.Addr {
	return netip.AddrFrom4([4]byte{127, 77, byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
}

// start runs the agent of pod web-0 in namespace shop.
func (m *mesh) start(ca, xds string, env ...string) *proxy {
	m.t.Helper()
	return m.startIn(filepath.Join(m.t.TempDir(), "state"), ca, xds, env...)
}

func (m *mesh) startIn(stateDir, ca, xds string, env ...string) *proxy {
	t := m.t
	t.Helper()
	ip := loopbackIP()
	c, err := config.Parse("sidecar", config.Flags{
		StateDir:         stateDir,
		TokenFile:        m.Issuer.TokenFile("shop", "web", contract.TokenAudience),
		RootCertFile:     m.PKI.WriteRoot(t.TempDir()),
		EnvoyBinary:      envoyBinary(t),
		DiscoveryAddress: strings.Split(xds, ","),
		CAAddress:        ca,
		Bind:             ip.String(),
		Concurrency:      1,
		LogLevel:         "debug",
		EnvoyLogLevel:    "warning",
	}, config.Host{
		Environ: append([]string{
			"POD_NAME=web-0", "POD_NAMESPACE=shop", "SERVICE_ACCOUNT=web", "INSTANCE_IP=" + ip.String(),
			"ISTIO_META_INTERCEPTION_MODE=NONE", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "MINIMUM_DRAIN_DURATION=0s",
		}, env...),
		ReadFile:  os.ReadFile,
		OpenFiles: 10000,
	})
	if err != nil {
		t.Fatal(err)
	}
	if m.configure != nil {
		m.configure(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &proxy{t: t, ip: ip, config: c, stop: cancel, ended: make(chan error, 1),
		admin: envoy.NewAdmin(filepath.Join(c.StateDir, statedir.Admin))}
	p.log = &logWatch{Handler: testkit.Logger(t).Handler()}
	log := slog.New(p.log)
	go func() { p.ended <- app.Run(ctx, c, log, app.Output{Stdout: io.Discard, Stderr: &lines{t: t}}) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-p.ended:
			p.ended <- err
		case <-time.After(testkit.Patience):
			t.Error("the agent did not end")
		}
	})
	return p
}

// logWatch passes the agent's log on and counts its messages.
type logWatch struct {
	slog.Handler
	mu   sync.Mutex
	seen map[string]int
}

func (l *logWatch) Handle(ctx context.Context, r slog.Record) error {
	l.mu.Lock()
	if l.seen == nil {
		l.seen = map[string]int{}
	}
	l.seen[r.Message]++
	l.mu.Unlock()
	return l.Handler.Handle(ctx, r)
}

func (l *logWatch) count(message string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[message]
}

// wantLog waits until the agent has logged message at least n times.
func (p *proxy) wantLog(message string, n int) {
	p.t.Helper()
	testkit.Eventually(p.t, testkit.Patience, func() error {
		if got := p.log.count(message); got < n {
			return fmt.Errorf("logged %q %d times, want %d", message, got, n)
		}
		return nil
	})
}

// lines sends Envoy's log to the test's.
type lines struct{ t *testing.T }

func (l *lines) Write(b []byte) (int, error) {
	l.t.Log("envoy: " + strings.TrimSpace(string(b)))
	return len(b), nil
}

// wait returns how the agent ended.
func (p *proxy) wait() error {
	p.t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err
		return err
	case <-time.After(testkit.Patience):
		p.t.Fatal("the agent did not end")
		return nil
	}
}

func (p *proxy) url(port int, path string) string {
	return fmt.Sprintf("http://%s:%d%s", p.ip, port, path)
}

// get is one request on a connection of its own.
func get(url string) (int, string, error) {
	client := &http.Client{Timeout: 10 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext}}
	resp, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// wantReady waits until Envoy's own readiness listener says 200.
func (p *proxy) wantReady() {
	p.t.Helper()
	testkit.Eventually(p.t, testkit.Patience, func() error {
		status, body, err := get(p.url(15021, "/healthz/ready"))
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d: %s", status, body)
		}
		return err
	})
}

func (p *proxy) stat(name string) uint64 {
	p.t.Helper()
	stats, err := p.admin.Stats(context.Background(), "^"+strings.ReplaceAll(name, ".", `\.`)+"$")
	if err != nil {
		p.t.Fatal(err)
	}
	return stats[name]
}
