// Package gate runs one real Envoy in which the security filters of many workloads stand before nothing but an answer,
// so that a test can ask which requests they let through. Each door is what one control plane made for one workload;
// doors of two sides have the same addresses and ports, and the filters cannot tell the sides apart.
package gate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/policygen"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// Sides is how many doors a workload has.
const Sides = 2

// Door is the filters of a workload.
type Door struct {
	Set policygen.Set
	// HTTP stand in the HTTP connection manager before the router, Network before the end of a TCP connection.
	HTTP    []*hcm.HttpFilter
	Network []*listener.Filter
	// Paths, if not nil, says how paths are normalised; otherwise they are as by pathNormalization BASE.
	Paths *hcm.HttpConnectionManager
}

// Config says what to run.
type Config struct {
	// Envoy is the binary.
	Envoy string
	// Clusters are the addresses of servers that filters ask, by the names of clusters in the filters.
	Clusters []Cluster
	// Application, if not empty, is the address to which requests go that the filters let through; otherwise they are
	// answered at the door.
	Application string
	// CA signs the server's certificate, and is the only one whose clients are known.
	CA *testkit.CA
}

// Cluster is a server that filters ask.
type Cluster struct {
	Name, Address string
	// HTTP2 is set for gRPC.
	HTTP2 bool
}

// Gate is a running Envoy.
type Gate struct {
	process *process.Process
	// http and tcp are where each side listens.
	http, tcp [Sides]string
}

const readyWithin = time.Minute

// Open runs an Envoy with the doors of each side, until the test ends or Close. The error tells that Envoy does not
// take the filters.
func Open(ctx context.Context, t testing.TB, c Config, doors [Sides][]Door) (*Gate, error) {
	t.Helper()
	dir := t.TempDir()
	g := &Gate{}
	admin := testkit.FreeAddress(t).String()
	b := &bootstrap.Bootstrap{Admin: &bootstrap.Admin{Address: address(admin)}, StaticResources: &bootstrap.Bootstrap_StaticResources{}}
	for _, cluster := range c.Clusters {
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, cluster.proto())
	}
	builder := newBuilder(t, c.CA)
	if c.Application != "" {
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, Cluster{Name: application, Address: c.Application}.proto())
		builder.forward()
	}
	for side := range doors {
		g.http[side], g.tcp[side] = testkit.FreeAddress(t).String(), testkit.FreeAddress(t).String()
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, builder.http(g.http[side], doors[side]),
			builder.tcp(g.tcp[side], doors[side]))
	}
	raw, err := proto.Marshal(b)
	if err != nil {
		return nil, err
	}
	file, log := filepath.Join(dir, "bootstrap.pb"), filepath.Join(dir, "envoy.log")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		return nil, err
	}
	g.process, err = process.Start(process.Program{Name: "envoy", Path: c.Envoy, Stdout: log, Stderr: log, Args: []string{
		"-c", file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning", "--service-node", "gate",
		"--service-cluster", "gate",
	}}, nil)
	if err != nil {
		return nil, err
	}
	t.Cleanup(g.Close)
	client := probe.Client(nil)
	return g, g.process.Until(ctx, readyWithin, func() error { return probe.Ready(ctx, client, "http://"+admin+"/ready") })
}

// CPU is the time of processors that Envoy has used.
func (g *Gate) CPU() (time.Duration, error) {
	var ts unix.Timespec
	// The clock id of another process's CPU time, see clock_getcpuclockid(3).
	if err := unix.ClockGettime(int32(^g.process.PID())<<3|2, &ts); err != nil { //nolint:gosec // a pid fits
		return 0, err
	}
	return time.Duration(ts.Nano()), nil
}

// Close ends Envoy.
func (g *Gate) Close() { g.process.Kill() }

// Died is an error if Envoy has ended by itself, with what it logged last.
func (g *Gate) Died() error {
	if err := g.process.Died(); err != nil {
		return errors.Join(err, errors.New(g.process.LogTail()))
	}
	return nil
}

func split(hostport string) (string, uint32) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		panic(err) // an address of a listener
	}
	var n uint32
	if _, err := fmt.Sscan(port, &n); err != nil {
		panic(err)
	}
	return host, n
}
