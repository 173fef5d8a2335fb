package suite

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/tests/bench/internal/floor"
	"fairlead.dev/tests/bench/internal/identity"
	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/bench/internal/proxy"
	"fairlead.dev/tests/bench/internal/watcher"
)

// lab is what all groups of rows share.
type lab struct {
	Options
	dir       string
	cores     *machine.Cores
	authority *identity.Authority
	config    *svid.Manager // config-watcher's certificate
	log       io.Writer
	started   int
}

func newLab(ctx context.Context, o Options, log io.Writer) (*lab, error) {
	l := &lab{Options: o, dir: o.Keep, log: log}
	var err error
	if l.dir == "" {
		l.dir, err = os.MkdirTemp("", "fl-bench")
	} else {
		err = os.MkdirAll(l.dir, 0o700)
	}
	if err != nil {
		return nil, err
	}
	if l.BinDir, err = filepath.Abs(l.BinDir); err != nil {
		return nil, err
	}
	if o.Realtime {
		if err := machine.Realtime(); err != nil {
			return nil, err
		}
	}
	if l.cores, err = machine.Divide(); err != nil {
		return nil, err
	}
	if l.authority, err = identity.Start(ctx, filepath.Join(l.BinDir, "ca"), l.dir, l.cores); err != nil {
		return nil, err
	}
	l.config, err = l.authority.Certificate(ctx, identity.SystemNamespace, "config-watcher")
	return l, err
}

func (l *lab) close() {
	if l.authority != nil {
		l.authority.Stop()
	}
	if l.Keep == "" {
		_ = os.RemoveAll(l.dir)
	}
}

// server is an xds-server's process.
type server struct {
	*machine.Process
	name, secure, plaintext, ops string
}

// serve starts an xds-server that follows a config-watcher.
func (l *lab) serve(ctx context.Context, watcher string) (*server, error) {
	ports, err := machine.FreePorts(3)
	if err != nil {
		return nil, err
	}
	flags, err := l.authority.Flags("xds-server")
	if err != nil {
		return nil, err
	}
	l.started++
	s := &server{name: fmt.Sprintf("xds-server-%d", l.started), secure: ports[0], plaintext: ports[1], ops: ports[2]}
	cmd := exec.Command(filepath.Join(l.BinDir, "xds-server"), append(flags, "--log-level", "warn", "--instance", s.name, "--max-connection-age=-1s",
		"--config-watcher-address", watcher, "--secure-address", s.secure, "--plaintext-address", s.plaintext, "--ops-address", s.ops)...)
	if s.Process, err = machine.Start(cmd, &l.cores.Server, filepath.Join(l.dir, s.name+".log")); err != nil {
		return nil, err
	}
	if err := machine.Ready(ctx, s.Process, s.ops); err != nil {
		s.Stop()
		return nil, err
	}
	return s, quiet(ctx, s.Process, nil)
}

// profileFor is how long a profile takes.
const profileFor = 5 * time.Second

// profile keeps a CPU profile of the next seconds; done is closed when it is there.
func (l *lab) profile(ctx context.Context, s *server, name string) (done <-chan error) {
	out := make(chan error, 1)
	go func() { out <- l.fetchProfile(ctx, s, name) }()
	return out
}

func (l *lab) fetchProfile(ctx context.Context, s *server, name string) error {
	return l.fetch(ctx, s.ops, fmt.Sprintf("profile?seconds=%d", int(profileFor.Seconds())), name)
}

// heap keeps a profile of what is live on a process's heap, if profiles are asked for.
func (l *lab) heap(ctx context.Context, ops, name string) error {
	if !l.Profile {
		return nil
	}
	return l.fetch(ctx, ops, "heap?gc=1", name)
}

// fetch reads one page of a process's profiles into a file.
func (l *lab) fetch(ctx context.Context, ops, page, name string) error {
	token, err := l.authority.Token(identity.SystemNamespace, "fairlead-admin", "fairlead")
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/debug/pprof/%s", ops, page), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("profile: %s: %s", res.Status, raw)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.dir, name+".pprof"), raw, 0o600)
}

// world is a mesh with an xds-server, its proxies, and a floor with the same ones.
type world struct {
	*lab
	// group that the rows belong to.
	group   string
	spec    mesh.Spec
	watcher *watcher.Watcher
	server  *server
	fleet   *proxy.Fleet

	floor *floor.Process
	echo  *proxy.Fleet

	// addCPU and addFloor are what a new service took.
	addCPU, addFloor time.Duration
}

func (l *lab) world(ctx context.Context, group string, spec mesh.Spec) (*world, error) {
	w := &world{lab: l, group: group, spec: spec, fleet: proxy.NewFleet(spec.Proxies())}
	var err error
	if w.watcher, err = watcher.Start(ctx, l.config, spec.Resources()); err != nil {
		return nil, err
	}
	w.server, err = l.serve(ctx, w.watcher.Address)
	return w, err
}

func (w *world) close() {
	w.fleet.Close()
	w.closeFloor()
	if w.server != nil {
		w.server.Stop()
	}
	w.watcher.Stop()
}

func (w *world) closeFloor() {
	if w.echo != nil {
		w.echo.Close()
	}
	if w.floor != nil {
		w.floor.Stop()
	}
	w.echo, w.floor = nil, nil
}

// openFloor starts a floor, with a stream for each proxy if they are to be pushed to when told.
func (w *world) openFloor(ctx context.Context, files floor.Files, connected bool) (err error) {
	w.closeFloor()
	if w.floor, err = floor.Start(w.dir, &w.cores.Server, files); err != nil {
		return err
	}
	w.echo = proxy.NewFleet(w.spec.Proxies())
	if !connected {
		return nil
	}
	if err := w.echo.Connect(ctx, proxy.Target{Address: w.floor.Address}, proxy.Echo, func() {}); err != nil {
		return err
	}
	if err := w.floor.Wait(w.echo.Len()); err != nil {
		return err
	}
	return quiet(ctx, w.floor.Process, w.echo)
}

// tlsFor gives every namespace's proxies their certificates.
func (l *lab) tlsFor(ctx context.Context, spec mesh.Spec) (func(string) *tls.Config, error) {
	configs := map[string]*tls.Config{}
	for _, p := range spec.Proxies() {
		if configs[p.Namespace] != nil {
			continue
		}
		own, err := l.authority.Certificate(ctx, p.Namespace, "default")
		if err != nil {
			return nil, err
		}
		configs[p.Namespace] = tlsconf.Client(own, identity.ID(identity.SystemNamespace, "xds-server"))
	}
	return func(namespace string) *tls.Config { return configs[namespace] }, nil
}
