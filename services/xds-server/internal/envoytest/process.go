package envoytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/testkit"
)

// startsWithin is far more than Envoy needs to start.
const startsWithin = 30 * time.Second

// Binary returns the path of Envoy: the environment variable ENVOY, or else what `make tools` has installed. A test
// without one is skipped.
func Binary(t testing.TB) string {
	t.Helper()
	path := os.Getenv("ENVOY")
	if path == "" {
		path = ".tools/envoy"
		for range 8 {
			if _, err := os.Stat(path); err == nil {
				break
			}
			path = filepath.Join("..", path)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
		t.Skip("no Envoy: run `make tools`, or set ENVOY")
	}
	return path
}

// Process is a running Envoy.
type Process struct {
	t     testing.TB
	admin *http.Client
}

// Starter starts a prepared command, for example in a network namespace or as another user.
type Starter func(*exec.Cmd) error

// Start runs Envoy until the test ends, with the admin interface on a unix socket. start is nil to start it in the
// ordinary way. Envoy's log is shown if the test fails.
func Start(t testing.TB, config *bootstrap.Bootstrap, start Starter) *Process {
	t.Helper()
	binary := Binary(t)
	dir, err := os.MkdirTemp("", "envoy") // short: the path of a unix socket may have 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "admin.sock")
	config = proto.CloneOf(config)
	config.Admin = &bootstrap.Admin{Address: Pipe(socket)}
	path := write(t, dir, config)
	log := &bytes.Buffer{}
	p := &Process{t: t, admin: &http.Client{Timeout: startsWithin, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
	cmd := exec.Command(binary, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning", "--drain-time-s", "1", "-c", path)
	cmd.Stdout, cmd.Stderr = log, log
	if start == nil {
		start = (*exec.Cmd).Start
	}
	if err := start(cmd); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // killed, or its log has the reason
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended by itself
		<-ended
		if t.Failed() {
			t.Logf("Envoy says:\n%s", log)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return p
}

func write(t testing.TB, dir string, config *bootstrap.Bootstrap) string {
	t.Helper()
	raw, err := protojson.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "bootstrap.json")
	testkit.WriteFile(t, path, raw)
	return path
}

// Validate returns the error of Envoy's validation mode for a bootstrap, "" if it accepts it. Envoy 1.40 says so, and
// then crashes, where a counter's scope has a name.
func Validate(t testing.TB, config *bootstrap.Bootstrap) string {
	t.Helper()
	path := write(t, t.TempDir(), config)
	out, err := exec.CommandContext(t.Context(), Binary(t), "--mode", "validate", "--log-level", "error", "-c", path).CombinedOutput()
	if err == nil || strings.Contains(string(out), "bootstrap.json' OK") {
		return ""
	}
	if _, reason, ok := strings.Cut(string(out), "bootstrap.json': "); ok {
		return reason
	}
	return fmt.Sprint(err, ": ", string(out))
}

// Alone starts Envoy in a network namespace of its own, where all ports are free and only unix sockets lead out. It
// needs root, or the right to make user namespaces.
func Alone(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
	}
	return cmd.Start()
}

// NeedAlone skips the test where Alone cannot start anything. For root on CI it fails the test instead.
func NeedAlone(t testing.TB) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "true")
	err := Alone(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	switch {
	case err == nil:
	case os.Getenv("CI") != "" && os.Getuid() == 0:
		t.Fatalf("needs a network namespace: %v", err)
	default:
		t.Skipf("needs root, or user namespaces, for a network namespace: %v", err)
	}
}

// Pipe is the address of a unix socket.
func Pipe(path string) *core.Address {
	return &core.Address{Address: &core.Address_Pipe{Pipe: &core.Pipe{Path: path, Mode: 0o600}}}
}

// Get asks the admin interface.
func (p *Process) Get(path string) (status int, body []byte, err error) {
	// The test's context has ended when cleanups ask.
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://admin"+path, nil)
	if err != nil {
		return 0, nil, err
	}
	res, err := p.admin.Do(req)
	if err != nil {
		return 0, nil, err
	}
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, errors.Join(err, res.Body.Close())
}

// Ready waits until Envoy is ready.
func (p *Process) Ready() {
	p.t.Helper()
	testkit.Eventually(p.t, startsWithin, func() error {
		if code, body, err := p.Get("/ready"); err != nil || code != http.StatusOK {
			return fmt.Errorf("%d %s %w", code, body, err)
		}
		return nil
	})
}

// Stats returns the counters and gauges whose names match.
func (p *Process) Stats(filter string) map[string]int {
	p.t.Helper()
	_, body, err := p.Get("/stats?filter=" + filter)
	if err != nil {
		p.t.Fatal(err)
	}
	found := map[string]int{}
	for line := range strings.Lines(string(body)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.Atoi(value); err == nil {
			found[name] = n
		}
	}
	return found
}

// Accepted fails the test if Envoy has rejected an update, or waits for something before it can use one.
func (p *Process) Accepted() {
	p.t.Helper()
	for name, n := range p.Stats("update_rejected|warming_clusters|total_listeners_warming") {
		if n != 0 {
			p.t.Errorf("%s is %d", name, n)
		}
	}
}
