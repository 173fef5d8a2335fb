// Package clitest runs command lines in tests, against a fake config-watcher and xds-servers.
package clitest

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/cli"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/configapi/configapitest"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/meshclient"
)

// Fixture is a fake config-watcher and the flags to reach it.
type Fixture struct {
	*configapitest.Server
	Flags []string
}

// New starts a config-watcher.
func New(t *testing.T) *Fixture {
	t.Helper()
	issuer := testkit.NewIssuer(t)
	s := configapitest.Start(t, configapitest.Config{JWKSFile: issuer.JWKSFile, Issuer: issuer.Name})
	return &Fixture{s, []string{
		"--config-watcher-address", s.Address, "--root-cert-file", s.RootFile, "--trust-domain", testkit.TrustDomain,
		"--token-file", issuer.TokenFile("istio-system", "fairlead-admin", "fairlead"),
	}}
}

// Run runs a command and returns what it printed, its error and its exit code.
func Run(stdin string, args ...string) (out string, code int, err error) {
	var stdout bytes.Buffer
	err = cli.Run(context.Background(), command.Env{
		In: strings.NewReader(stdin), Out: &stdout, Err: &stdout, Executable: "/nowhere/fairlead", Getenv: func(string) string { return "" },
	}, args)
	return stdout.String(), process.ExitCode(err), err
}

// Run is the function Run for the fixture's config-watcher.
func (m *Fixture) Run(stdin string, args ...string) (string, int, error) {
	return Run(stdin, append(args, m.Flags...)...)
}

// Mesh is the mesh of the fixture, for tests of what commands call.
func (m *Fixture) Mesh() *meshclient.Mesh {
	return meshclient.New(meshclient.Config{
		Address: m.Address, RootFile: m.RootFile, TrustDomain: testkit.TrustDomain, TokenFile: m.Flags[len(m.Flags)-1],
	})
}

// File writes a file of objects.
func File(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "objects.yaml")
	testkit.WriteFile(t, name, []byte(content))
	return name
}

// Object is VirtualService shop/web.
const Object = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\nspec: {hosts: [web]}\n"

// SharedBuffer is what a command writes while a test reads it.
type SharedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *SharedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String is the text with single blanks for those between columns.
func (b *SharedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return regexp.MustCompile(" {2,}").ReplaceAllString(b.text.String(), "   ")
}

// NewWithFile is a fixture whose config-watcher has VirtualService shop/web from a file, with findings about it.
func NewWithFile(t *testing.T) *Fixture {
	m := New(t)
	until := timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	m.SetFiles([]*configv1.Object{{
		Key:    &configv1.ObjectKey{ApiVersion: "networking.istio.io/v1", Kind: "VirtualService", Namespace: "shop", Name: "web"},
		Source: "file", Location: "mesh.yaml:515", StaysUntil: until,
		Manifest: []byte(`{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"web","namespace":"shop"},"spec":{"hosts":["web"]}}`),
	}}, []*configv1.Finding{
		{Type: configv1.FindingType_FINDING_TYPE_STAYS, Object: "VirtualService shop/web", Source: "file", Location: "mesh.yaml:515",
			Message: "mesh.yaml is gone", Until: until},
		{Type: configv1.FindingType_FINDING_TYPE_UNREAD, Object: "HTTPRoute shop/r", Source: "file", Location: "mesh.yaml:600",
			Message: "kind: nobody reads this kind"},
	})
	return m
}

// MustPrint runs a command that must succeed and print all of want.
func (m *Fixture) MustPrint(t *testing.T, args []string, want ...string) {
	t.Helper()
	out, code, err := m.Run("", args...)
	if err != nil || code != process.ExitOK {
		t.Errorf("%v: %d, %v", args, code, err)
	}
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("%v lacks %q:\n%s", args, w, out)
		}
	}
}

// WarningAbout is a warning about a VirtualService.
func WarningAbout(namespace, name, text string) *configv1.Warning {
	return &configv1.Warning{Object: &configv1.ObjectKey{Kind: "VirtualService", Namespace: namespace, Name: name}, Text: text}
}

// Split runs a command with an environment and returns standard output and standard error.
func Split(env map[string]string, args ...string) (out, diagnostics string, code int, err error) {
	var stdout, stderr bytes.Buffer
	err = cli.Run(context.Background(), command.Env{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr, Executable: "/nowhere/fairlead",
		Getenv: func(name string) string { return env[name] },
	}, args)
	return stdout.String(), stderr.String(), process.ExitCode(err), err
}

// TypePrefix begins the type URLs of xDS.
const TypePrefix = "type.googleapis.com/envoy.config."

// Revision is a revision by its number.
func Revision(n uint64) *configv1.Revision { return &configv1.Revision{Sequence: n} }

// TwoProxies is a.shop, which has a type in each state, and b.shop, which has asked for nothing.
func TwoProxies() []*configv1.ProxyStatus {
	return []*configv1.ProxyStatus{
		{NodeId: "sidecar~127.0.0.1~a.shop~x", XdsServer: "xds-server-0/1", ProxyVersion: "1.40.0", AgentVersion: "0.9.1", Revision: "canary",
			Acked: Revision(4), Types: []*configv1.ProxyTypeStatus{
				{TypeUrl: TypePrefix + "cluster.v3.Cluster", Sent: Revision(4), Acked: Revision(4), Resources: 7, BytesSent: 100},
				{
					TypeUrl: TypePrefix + "endpoint.v3.ClusterLoadAssignment", Sent: Revision(5), Acked: Revision(4), Awaiting: true, Pending: 4,
					PendingNames: []string{"one", "two", "three", "four"},
				},
				{TypeUrl: TypePrefix + "listener.v3.Listener", Sent: Revision(5), Acked: Revision(3), Rejection: &configv1.Rejection{
					Message: "bad  filter", Revision: Revision(5), ResourceNames: []string{"0.0.0.0_80", "0.0.0.0_81"},
				}},
				{TypeUrl: TypePrefix + "route.v3.RouteConfiguration"},
				{TypeUrl: TypePrefix + "core.v3.TypedExtensionConfig", Resources: 3}, // held since before it connected
				{TypeUrl: TypePrefix + "route.v3.VirtualHost", Sent: Revision(4), Acked: Revision(4), Pending: 1, PendingNames: []string{"80/web:80"}},
			}},
		{NodeId: "sidecar~127.0.0.2~b.shop~x", XdsServer: "xds-server-1/2"},
	}
}

// XDSPort runs the operations port of an xds-server that one proxy is connected to. It returns its address.
func XDSPort(t *testing.T, node string, answers map[string]func(url.Values) (any, error)) string {
	t.Helper()
	lis := testkit.LoopbackListener(t)
	server := ops.New(ops.Config{
		Listener: lis, Log: testkit.Logger(t), Gatherer: prometheus.NewRegistry(),
		Authenticate: func(r *http.Request) error {
			switch r.Header.Get("Authorization") {
			case "Bearer forbidden":
				return auth.ErrForbidden
			case "Bearer unknown":
				return auth.ErrNoCredentials
			}
			return nil
		},
	})
	for path, answer := range answers {
		server.Debug(path, "canned", ops.JSON(func(r *http.Request) (any, error) {
			if got := r.URL.Query().Get("proxy"); got != node {
				return nil, &ops.StatusError{Code: http.StatusNotFound, Err: fmt.Errorf("no proxy %q is connected here", got)}
			}
			return answer(r.URL.Query())
		}))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return lis.Addr().String()
}

// TokenFile writes a token to a file.
func TokenFile(t *testing.T, token string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "token")
	testkit.WriteFile(t, name, []byte(token))
	return name
}

// RunMesh writes the state of a running mesh with two xds-servers and returns its run directory.
func (m *Fixture) RunMesh(t *testing.T, addresses ...string) string {
	t.Helper()
	s := runstate.State{
		PID: os.Getpid(), Birth: rundir.Birth(os.Getpid()), TrustDomain: testkit.TrustDomain,
		ConfigWatcherAddress: m.Address, RootCertFile: m.RootFile, AdminTokenFile: m.Flags[len(m.Flags)-1],
	}
	for i, a := range addresses {
		s.Services = append(s.Services, runstate.Service{
			Process: runstate.Process{Name: fmt.Sprintf("xds-server-%d", i)}, Program: "xds-server", OpsAddress: a,
		})
	}
	dir := t.TempDir()
	if err := rundir.Write(rundir.Layout{Dir: dir}, &s); err != nil {
		t.Fatal(err)
	}
	return dir
}

// FakeWatcher makes a directory with a config-watcher that prints its arguments and its input, prints "no" on standard
// error, and exits with code.
func FakeWatcher(t *testing.T, code string) string {
	t.Helper()
	bin := t.TempDir()
	script := "#!/bin/sh\necho \"{\\\"args\\\": \\\"$*\\\", \\\"input\\\": \\\"$(cat)\\\"}\"\n[ " + code +
		" = 0 ] || echo 'config-watcher: no' >&2\nexit " + code + "\n"
	testkit.WriteFile(t, filepath.Join(bin, "config-watcher"), []byte(script))
	if err := os.Chmod(filepath.Join(bin, "config-watcher"), 0o700); err != nil {
		t.Fatal(err)
	}
	return bin
}
