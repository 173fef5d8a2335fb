// Package controlplane runs ca, config-watcher and xds-servers as processes, for tests and benchmarks that put a mesh
// together themselves: with an issuer of tokens, the flags by which the services find and trust each other, a log for
// each, and certificates and tokens for whoever else takes part.
//
// New makes the ca and the issuer; ConfigWatcher and XDSServer add services. Nothing runs before Service.Start. Whoever
// has started services calls Plane.Stop, or Service.Stop for each.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/testkit/token"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// TrustDomain is the usual one.
const TrustDomain = "cluster.local"

const (
	tokenIssuer = "https://issuer.test"
	// tokenTTL is longer than any run.
	tokenTTL = 24 * time.Hour
)

// Config of a Plane. All but the last three are required.
type Config struct {
	// Dir holds tokens, state and the directory "logs"; it is there.
	Dir      string
	Binaries binaries.Set
	// CAPorts are where the ca listens.
	CAPorts Ports
	// Start runs a program where the caller wants it: on a machine of a network, or on a processor.
	Start func(process.Program) (*process.Process, error)
	// Dial connects to the services' ports; nil: as any process of this machine.
	Dial probe.Dial
	// Domain is the trust domain, by default TrustDomain.
	Domain string
	// Args are further arguments of every service.
	Args []string
}

// Plane is a control plane.
type Plane struct {
	Config
	// RootFile is the trust bundle, which the ca writes; JWKSFile holds the keys of the tokens.
	RootFile, JWKSFile string
	CA                 *Service
	// Services are all, the ca first.
	Services []*Service

	issuer token.Issuer
}

// New makes a control plane of a ca, and writes the keys of the tokens.
func New(c Config) (*Plane, error) {
	if c.Domain == "" {
		c.Domain = TrustDomain
	}
	p := &Plane{Config: c, RootFile: filepath.Join(c.Dir, "root-cert.pem"), JWKSFile: filepath.Join(c.Dir, "jwks.json")}
	if _, err := spiffeid.TrustDomainFromString(c.Domain); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(c.Dir, "logs"), 0o755); err != nil {
		return nil, err
	}
	var err error
	if p.issuer, err = token.NewIssuer(tokenIssuer); err != nil {
		return nil, err
	}
	keys, err := p.issuer.JWKS()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(p.JWKSFile, keys, 0o644); err != nil {
		return nil, err
	}
	p.CA = p.add(contract.CAAccount, contract.CAAccount, c.CAPorts, "--grpc-address", c.CAPorts.GRPC, "--ca-dir", filepath.Join(c.Dir, "ca"),
		"--root-cert-out", p.RootFile)
	return p, nil
}

// ConfigWatcher adds a config-watcher. Where its objects come from is among the further arguments.
func (p *Plane) ConfigWatcher(at Ports, more ...string) (*Service, error) {
	own, err := p.own(contract.ConfigWatcherAccount, contract.ConfigWatcherAccount)
	if err != nil {
		return nil, err
	}
	return p.add(contract.ConfigWatcherAccount, contract.ConfigWatcherAccount, at, append(append(own, "--grpc-address", at.GRPC), more...)...),
		nil
}

// XDSServer adds replica number n of xds-server, which follows the config-watcher at an address.
func (p *Plane) XDSServer(n int, at Ports, watcher string, more ...string) (*Service, error) {
	instance := fmt.Sprintf("%s-%d", contract.XDSServerAccount, n)
	own, err := p.own(contract.XDSServerAccount, instance)
	if err != nil {
		return nil, err
	}
	return p.add(fmt.Sprintf("%s/%d", contract.XDSServerAccount, n), contract.XDSServerAccount, at, append(append(own,
		"--secure-address", at.GRPC, "--config-watcher-address", watcher, "--instance", instance), more...)...), nil
}

// own are the flags by which a service comes to its certificate and keeps it.
func (p *Plane) own(account, instance string) ([]string, error) {
	file := filepath.Join(p.Dir, "token-"+instance)
	return []string{
		"--ca-address", p.CA.GRPC, "--root-cert-file", p.RootFile, "--ca-token-file", file, "--state-dir",
		filepath.Join(p.Dir, "state-"+instance),
	}, p.WriteToken(file, 0, contract.SystemNamespace, account, contract.TokenAudience)
}

func (p *Plane) add(name, program string, at Ports, args ...string) *Service {
	log := filepath.Join(p.Dir, "logs", strings.ReplaceAll(name, "/", "-")+".log")
	args = append(args, "--ops-address", at.Ops, "--trust-domain", p.Domain, "--issuer", tokenIssuer, "--jwks-file", p.JWKSFile,
		"--admin-jwks-file", p.JWKSFile)
	s := &Service{Name: name, Ports: at, plane: p, program: process.Program{
		Name: name, Path: p.Binaries.Path(program), Args: append(args, p.Args...), Stdout: log, Stderr: log,
	}}
	p.Services = append(p.Services, s)
	return s
}

// Find lists the services that are meant by a name, as "xds-server/1", or by that of a program, as "xds-server".
func (p *Plane) Find(target string) []*Service {
	var found []*Service
	for _, s := range p.Services {
		if s.Name == target || strings.HasPrefix(s.Name, target+"/") {
			found = append(found, s)
		}
	}
	return found
}

// StartCA starts the ca and waits until it is ready: the others need the trust bundle, and look for it only once a
// second or so.
func (p *Plane) StartCA(ctx context.Context) error {
	if err := p.CA.Start(); err != nil {
		return err
	}
	return p.CA.WaitReady(ctx)
}

// Stop ends all services, the ca last, which the others need. The error has every one that did not end well.
func (p *Plane) Stop(within time.Duration) error {
	failed := make([]error, len(p.Services))
	var wg sync.WaitGroup
	for i, s := range p.Services[1:] {
		wg.Go(func() { failed[i] = s.Stop(within) })
	}
	wg.Wait()
	return errors.Join(errors.Join(failed...), p.CA.Stop(within))
}

// ID is the SPIFFE id of a service account.
func (p *Plane) ID(namespace, account string) spiffeid.ID {
	return spiffeid.RequireFromSegments(spiffeid.RequireTrustDomainFromString(p.Domain), "ns", namespace, "sa", account)
}

// Token is a token of a service account.
func (p *Plane) Token(namespace, account, audience string) (string, error) {
	return p.issuer.ServiceAccount(namespace, account, audience, tokenTTL)
}

// WriteToken writes a token of a service account to a file that only its user can read.
func (p *Plane) WriteToken(file string, uid int, namespace, account, audience string) error {
	token, err := p.Token(namespace, account, audience)
	if err != nil {
		return err
	}
	return write(file, uid, token)
}

// WritePodToken writes a token that is bound to a Pod, as the kubelet does.
func (p *Plane) WritePodToken(file string, uid int, namespace, pod, account string) error {
	token, err := p.issuer.Pod(namespace, account, pod, contract.TokenAudience, tokenTTL)
	if err != nil {
		return err
	}
	return write(file, uid, token)
}

func write(file string, uid int, token string) error {
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil || uid == 0 {
		return err
	}
	return os.Chown(file, uid, uid)
}

// Ports are addresses that a service listens at: for its callers, and for operators.
type Ports struct{ GRPC, Ops string }

// PortsOf are the ports of a service on a machine that has no other programs. n is the number of the replica, else 0.
func PortsOf(account, ip string, n int) Ports {
	first := map[string]struct{ grpc, ops int }{
		contract.CAAccount: {15012, 15014}, contract.ConfigWatcherAccount: {15060, 15016}, contract.XDSServerAccount: {15100, 15200},
	}[account]
	return Ports{net.JoinHostPort(ip, strconv.Itoa(first.grpc+n)), net.JoinHostPort(ip, strconv.Itoa(first.ops+n))}
}
