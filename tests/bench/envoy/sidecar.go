package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

const (
	readyWithin = time.Minute
	// poll is how often readiness is looked at: it bounds the precision of the figure.
	poll = 2 * time.Millisecond
)

// sidecar is an agent with its Envoy.
type sidecar struct {
	agent *machine.Process
	state string
	// ready is how long it took from the agent's start until Envoy took connections.
	ready time.Duration
}

// sidecar starts one that nobody has seen before.
func (l *lab) sidecar(ctx context.Context, onDemand bool) (*sidecar, error) {
	l.started++
	name := fmt.Sprintf("caller-%d", l.started)
	s := &sidecar{state: filepath.Join(l.dir, name)}
	if err := errors.Join(os.Mkdir(s.state, 0o700), os.Chown(s.state, proxyUID, proxyUID)); err != nil {
		return nil, err
	}
	log := filepath.Join(l.dir, name+".log")
	begin := time.Now()
	var err error
	if s.agent, err = machine.Start(process.Program{
		Name: "agent of " + name, Path: filepath.Join(l.dir, "node-agent"), UID: proxyUID, Stdout: log, Stderr: log,
		Args: []string{
			"proxy", "sidecar", "--state-dir", s.state, "--token-file", l.token, "--root-cert-file", l.plane.RootFile,
			"--envoy-binary", filepath.Join(l.dir, "envoy"), "--discovery-address", l.secure, "--ca-address", l.plane.CA.GRPC, "--concurrency", "1",
		},
		Env: []string{
			"POD_NAME=" + name, "POD_NAMESPACE=" + callers, fmt.Sprintf("INSTANCE_IP=10.248.0.%d", l.started), "SERVICE_ACCOUNT=default",
			"ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIO_META_INTERCEPTION_MODE=REDIRECT", "FAIRLEAD_VERIFY_REDIRECTION=false",
			"FAIRLEAD_ON_DEMAND=" + strconv.FormatBool(onDemand),
			"EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "MINIMUM_DRAIN_DURATION=0s",
		},
	}, &l.cores.Clients); err != nil {
		return nil, err
	}
	if err := s.waitReady(ctx); err != nil {
		s.agent.Stop()
		return nil, err
	}
	s.ready = time.Since(begin)
	return s, nil
}

func (s *sidecar) waitReady(ctx context.Context) error {
	client := probe.Client(nil)
	return s.agent.UntilEvery(ctx, poll, readyWithin, func() error { return probe.Ready(ctx, client, "http://127.0.0.1:15021/healthz/ready") })
}

// resident is the memory that Envoy holds, in bytes.
func (s *sidecar) resident() (int64, error) {
	pid, err := s.envoy()
	if err != nil {
		return 0, err
	}
	memory, err := machine.MemoryOf(pid)
	return memory.Resident, err
}

// cpu is the time of processors that Envoy has used.
func (s *sidecar) cpu() (time.Duration, error) {
	pid, err := s.envoy()
	if err != nil {
		return 0, err
	}
	var ts unix.Timespec
	// The clock id of another process's CPU time, see clock_getcpuclockid(3).
	if err := unix.ClockGettime(int32(^pid)<<3|2, &ts); err != nil { //nolint:gosec // a pid fits
		return 0, err
	}
	return time.Duration(ts.Nano()), nil
}

// envoy finds the process: the agent's child.
func (s *sidecar) envoy() (int, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0, err
	}
	for _, p := range processes {
		if stat, err := p.Stat(); err == nil && stat.PPID == s.agent.PID() {
			return p.PID, nil
		}
	}
	return 0, errors.New("the agent has no Envoy")
}

// clusters counts the clusters that lead to services.
func (s *sidecar) clusters(ctx context.Context) (int, error) {
	raw, err := probe.Get(ctx, probe.Unix(filepath.Join(s.state, probe.EnvoyAdmin)),
		"http://envoy/config_dump?resource=dynamic_active_clusters&mask=cluster.name")
	if err != nil {
		return 0, err
	}
	var dump struct {
		Configs []struct {
			Cluster struct {
				Name string `json:"name"`
			} `json:"cluster"`
		} `json:"configs"`
	}
	if err := json.Unmarshal(raw, &dump); err != nil {
		return 0, err
	}
	n := 0
	for _, c := range dump.Configs {
		if strings.HasPrefix(c.Cluster.Name, "outbound|") || strings.HasPrefix(c.Cluster.Name, "ondemand|") {
			n++
		}
	}
	return n, nil
}

// call sends one request on a connection of its own and returns how long it took.
func (t target) call() (time.Duration, error) {
	start := time.Now()
	if t.tcp {
		return time.Since(start), t.echo()
	}
	req, err := http.NewRequest(http.MethodGet, "http://"+t.address+"/", nil) //nolint:noctx // the client has a timeout
	if err != nil {
		return 0, err
	}
	req.Host = t.name
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	start = time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", t.name, resp.Status, body)
	}
	return time.Since(start), err
}

func (t target) echo() error {
	conn, err := net.DialTimeout("tcp4", t.address, 10*time.Second) //nolint:noctx // it has a timeout
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second)) // it is open
	if _, err := conn.Write([]byte("hello")); err != nil {
		return err
	}
	buf := make([]byte, 5)
	if _, err := io.ReadFull(conn, buf); err != nil || !bytes.Equal(buf, []byte("hello")) {
		return fmt.Errorf("%s: answered with %q: %w", t.name, buf, err)
	}
	return nil
}
