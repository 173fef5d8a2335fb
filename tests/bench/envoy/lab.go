package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"crypto/tls"

	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/bench/internal/services"
	"fairlead.dev/tests/bench/internal/watcher"
	"fairlead.dev/tests/internal/binaries"
)

const (
	// proxyUID is the user that proxies run as: its connections are not redirected.
	proxyUID = 1337
	// callers is the namespace of the proxy and of the services that it calls.
	callers = "ns-0"
	called  = 10
	rules   = 100
)

// lab is a control plane with a mesh, and applications that answer at all addresses of its services.
type lab struct {
	options
	dir     string
	cores   *machine.Cores
	plane   *services.Services
	token   string
	secure  string
	targets []target
	closers []func()
	started int
}

// target is a service that is called.
type target struct {
	name, address string
	tcp           bool
}

func newLab(ctx context.Context, o options) (*lab, error) {
	l := &lab{options: o, dir: o.keep}
	if err := l.start(ctx); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *lab) start(ctx context.Context) error {
	if err := network(); err != nil {
		return err
	}
	if err := l.files(); err != nil {
		return err
	}
	var err error
	if l.cores, err = machine.Divide(); err != nil {
		return err
	}
	if l.plane, err = services.Start(ctx, l.binDir, l.dir, l.cores); err != nil {
		return err
	}
	l.closers = append(l.closers, l.plane.Stop)
	l.token = filepath.Join(l.dir, "sidecar.token")
	if err := l.plane.WriteToken(l.token, proxyUID, callers, "default", contract.TokenAudience); err != nil {
		return err
	}
	own, err := l.plane.Certificate(ctx, contract.SystemNamespace, contract.ConfigWatcherAccount)
	if err != nil {
		return err
	}
	resources := mesh.Spec{Services: l.services, Rules: rules}.Resources()
	l.targets = targets(resources)
	w, err := watcher.Start(ctx, own, l.plane.ID(contract.SystemNamespace, contract.XDSServerAccount), resources)
	if err != nil {
		return err
	}
	l.closers = append(l.closers, w.Stop)
	if err := l.applications(ctx); err != nil {
		return err
	}
	return l.serve(ctx, w.Address)
}

func (l *lab) close() {
	for i := len(l.closers) - 1; i >= 0; i-- {
		l.closers[i]()
	}
}

// network gives the namespace every address of the mesh, and redirects connections to them as Istio's init container
// does.
func network() error {
	for _, args := range [][]string{
		{"ip", "link", "set", "lo", "up"},
		{"ip", "route", "add", "local", "10.0.0.0/8", "dev", "lo"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil { //nolint:gosec // constants
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader(fmt.Sprintf(`
table ip fairlead {
	chain output {
		type nat hook output priority -100;
		meta skuid %d return
		ip daddr 127.0.0.0/8 return
		meta l4proto tcp redirect to :15001
	}
}
`, proxyUID))
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// files makes the directory, with the programs that the proxies' user must be able to read.
func (l *lab) files() (err error) {
	if l.dir == "" {
		if l.dir, err = os.MkdirTemp("", "flbench"); err == nil {
			l.closers = append(l.closers, func() { _ = os.RemoveAll(l.dir) })
		}
	} else {
		err = os.MkdirAll(l.dir, 0o755) //nolint:gosec // the proxies' user reads it
	}
	if err == nil {
		err = os.Chmod(l.dir, 0o755) //nolint:gosec // the proxies' user reads it
	}
	for name, from := range map[string]string{"node-agent": filepath.Join(l.binDir, "node-agent"), "envoy": l.envoy} {
		if err == nil {
			err = binaries.Publish(from, filepath.Join(l.dir, name))
		}
	}
	return err
}

// targets are the services that are called: one that a VirtualService routes, one that speaks TCP, and others.
func targets(resources []*configv1.Resource) []target {
	ruled := map[string]bool{}
	for _, r := range resources {
		if c := r.GetIstioConfig(); c != nil {
			ruled[r.GetKey().GetNamespace()+"/"+r.GetKey().GetName()] = true
		}
	}
	var out []target
	var one, tcp bool
	others := 0
	for _, r := range resources {
		s := r.GetService()
		if s.GetNamespace() != callers {
			continue
		}
		isRuled, isTCP := ruled[callers+"/"+s.GetName()], s.GetPorts()[0].GetProtocol() == configv1.Protocol_PROTOCOL_TCP
		switch {
		case isRuled && !one:
			one = true
		case isTCP && !tcp:
			tcp = true
		case !isRuled && !isTCP && others < called-2:
			others++
		default:
			continue
		}
		out = append(out, target{name: s.GetName(), address: net.JoinHostPort(s.GetAddresses()[0], fmt.Sprint(s.GetPorts()[0].GetNumber())),
			tcp: isTCP})
	}
	return out
}

// applications answer for all Pods: HTTP on port 8080 and TCP on port 9000, behind the TLS of the called namespace.
func (l *lab) applications(ctx context.Context) error {
	own, err := l.plane.Certificate(ctx, callers, "default")
	if err != nil {
		return err
	}
	config := tlsconf.Server(own, tls.RequireAndVerifyClientCert)
	config.NextProtos = nil
	for port, serve := range map[string]func(net.Listener){"8080": serveHTTP, "9000": serveEcho} {
		lis, err := new(net.ListenConfig).Listen(ctx, "tcp4", "0.0.0.0:"+port)
		if err != nil {
			return err
		}
		l.closers = append(l.closers, func() { _ = lis.Close() })
		go serve(tls.NewListener(lis, config))
	}
	return nil
}

func serveHTTP(lis net.Listener) {
	_ = http.Serve(lis, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok")
	})) //nolint:gosec // ends with the process
}

func serveEcho(lis net.Listener) {
	for {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}()
	}
}

// serve starts xds-server.
func (l *lab) serve(ctx context.Context, watcher string) error {
	server, err := l.plane.XDSServer(ctx, 0, watcher)
	if err != nil {
		return err
	}
	l.secure = server.GRPC
	return nil
}
