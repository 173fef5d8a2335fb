package world

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/scenarios/internal/format"
)

// xdsServers is how many there are.
const xdsServers = 2

// Ports of the services on the hub.
const (
	caPort      = 15012
	caOps       = 15014
	watcherPort = 15060
	watcherOps  = 15016
	xdsPort     = 15100
	xdsOps      = 15200
)

// service is one of Fairlead's services, which may run.
type service struct {
	name    string
	program netns.Program
	// ops is the address of its HTTP port.
	ops     string
	process *netns.Process
}

// plane is the control plane.
type plane struct {
	world    *World
	services []*service
	rootFile string
}

func (w *World) hubAddress(port int) string {
	return net.JoinHostPort(w.network.Hub.IP.String(), strconv.Itoa(port))
}

// xdsAddresses are those of all xds-servers.
func (w *World) xdsAddresses() string {
	var all []string
	for i := range xdsServers {
		all = append(all, w.hubAddress(xdsPort+i))
	}
	return strings.Join(all, ",")
}

// startPlane starts the services and waits until config-watcher takes objects; the others it leaves to those that need
// them.
func (w *World) startPlane(ctx context.Context) error {
	jwks := w.path("jwks.json")
	var err error
	if w.authority, err = newAuthority(jwks); err != nil {
		return err
	}
	p := &plane{world: w, rootFile: w.path("root-cert.pem")}
	w.plane = p
	tokens := []string{"--issuer", tokenIssuer, "--jwks-file", jwks, "--trust-domain", w.mesh.trustDomain}
	p.add("ca", "ca", caOps, append(tokens, "--grpc-address", w.hubAddress(caPort), "--ca-dir", w.path("ca"), "--root-cert-out", p.rootFile)...)
	identity := func(account, instance string) ([]string, error) {
		token := w.path("token-" + instance)
		return append(tokens[:len(tokens):len(tokens)], "--ca-address", w.hubAddress(caPort), "--root-cert-file", p.rootFile,
			"--state-dir", w.path("state-"+instance), "--ca-token-file", token), w.authority.writeToken(token, 0, format.RootNamespace, account, forCA)
	}
	own, err := identity("config-watcher", "config-watcher")
	if err != nil {
		return err
	}
	p.add("config-watcher", "config-watcher", watcherOps, append(own, "--grpc-address", w.hubAddress(watcherPort), "--store-dir", w.path("store"))...)
	for i := range xdsServers {
		name := fmt.Sprintf("xds-server-%d", i)
		if own, err = identity("xds-server", name); err != nil {
			return err
		}
		p.add(fmt.Sprintf("xds-server/%d", i), "xds-server", xdsOps+i, append(own,
			"--secure-address", w.hubAddress(xdsPort+i), "--config-watcher-address", w.hubAddress(watcherPort), "--instance", name)...)
	}
	if err := p.services[0].start(w); err != nil {
		return err
	}
	// The others look for the roots once a second or so.
	if err := until(ctx, readyWithin, func() error { _, err := os.Stat(p.rootFile); return err }); err != nil {
		return fmt.Errorf("ca: %w", err)
	}
	for _, s := range p.services[1:] {
		if err := s.start(w); err != nil {
			return err
		}
	}
	if err := w.authority.writeToken(w.path("token-admin"), 0, format.RootNamespace, "fairlead-admin", forAdmin); err != nil {
		return err
	}
	if err := p.services[1].wait(ctx, w); err != nil {
		return err
	}
	w.store, err = newStore(w)
	return err
}

func (p *plane) add(name, program string, ops int, args ...string) {
	log := p.world.path("logs/" + strings.ReplaceAll(name, "/", "-") + ".log")
	address := p.world.hubAddress(ops)
	p.services = append(p.services, &service{name: name, ops: address, program: netns.Program{
		Name: name, Path: p.world.files.Path(program), Args: append(args, "--ops-address", address), Stdout: log, Stderr: log,
	}})
}

// find lists the services that a target means.
func (p *plane) find(target string) []*service {
	var found []*service
	for _, s := range p.services {
		if s.name == target || strings.HasPrefix(s.name, target+"/") {
			found = append(found, s)
		}
	}
	return found
}

// stop ends all services; the ca last, which the others need.
func (p *plane) stop() error {
	err := each(p.services[1:], (*service).stop)
	return errors.Join(err, p.services[0].stop())
}

func (s *service) running() bool { return s.process != nil && s.process.Running() }

func (s *service) start(w *World) error {
	if s.running() {
		return nil
	}
	var err error
	s.process, err = w.network.Hub.Start(s.program)
	return err
}

func (s *service) stop() error {
	if s.process == nil {
		return nil
	}
	err := s.process.Stop(endWithin)
	s.process = nil
	return err
}

func (s *service) kill() {
	if s.process != nil {
		s.process.Kill()
	}
	s.process = nil
}

// wait waits until the service is ready.
func (s *service) wait(ctx context.Context, w *World) error {
	err := until(ctx, readyWithin, func() error {
		if err := s.process.Died(); err != nil {
			return lostError{err}
		}
		return ask(ctx, w.network.Hub, "http://"+s.ops+"/readyz")
	})
	if err != nil {
		return fmt.Errorf("%s is not ready: %w", s.name, err)
	}
	return nil
}

// askWithin bounds one question.
const askWithin = 5 * time.Second

// ask makes an HTTP request from a machine; anything but 200 is an error.
func ask(ctx context.Context, from *netns.Host, url string) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return from.Dial(ctx, network, address, "")
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}
