package plan

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Issuer is the `iss` of the tokens that `fairlead up` issues.
const Issuer = "https://fairlead.local"

// TokenAudience is what Istio's CA and xDS server ask for, AdminAudience what Fairlead's own APIs ask of operators.
const (
	TokenAudience = "istio-ca"
	AdminAudience = "fairlead"
)

// AdminAccount is the service account that the CLI acts as.
const AdminAccount = "fairlead-admin"

// serviceGrace is how long a service may take to close its streams.
const serviceGrace = 10 * time.Second

// addServices plans ca, config-watcher and the xds-servers.
func (p *Plan) addServices(o Options, addrs *addresses) error {
	l := o.Layout
	caAddr := addrs.at(caOffset)
	common := func(ops netip.AddrPort) []string {
		return []string{
			"--log-level", o.LogLevel,
			"--trust-domain", o.TrustDomain,
			"--ops-address", ops.String(),
			"--issuer", Issuer,
			"--jwks-file", l.JWKS(),
			"--admin-jwks-file", l.JWKS(),
		}
	}
	client := func(name string) []string {
		return []string{
			"--ca-address", netip.AddrPortFrom(caAddr, SecurePort).String(),
			"--ca-token-file", l.Token(name),
			"--root-cert-file", l.RootCert(),
			"--state-dir", l.ServiceState(name),
		}
	}
	add := func(name, program, account string, grpc netip.AddrPort, args ...[]string) error {
		path, err := o.Find(program)
		if err != nil {
			return err
		}
		s := &Service{
			Program: program, Account: account, GRPC: grpc,
			Ops:       netip.AddrPortFrom(grpc.Addr(), OpsPort),
			TokenFile: l.Token(name),
		}
		s.Process = Process{Name: name, Path: path, Env: o.BaseEnv, Log: l.Log(name), Grace: serviceGrace}
		s.Args = common(s.Ops)
		for _, a := range args {
			s.Args = append(s.Args, a...)
		}
		p.Services = append(p.Services, s)
		return nil
	}

	if err := add("ca", "ca", "ca", netip.AddrPortFrom(caAddr, SecurePort), []string{
		"--grpc-address", netip.AddrPortFrom(caAddr, SecurePort).String(),
		"--ca-dir", l.CADir(),
		"--root-cert-out", l.RootCert(),
	}); err != nil {
		return err
	}

	watcher := netip.AddrPortFrom(addrs.at(watcherOffset), ConfigWatcherPort)
	config := []string{
		"--grpc-address", watcher.String(),
		"--store-dir", l.StoreDir(),
	}
	for _, path := range o.ConfigPaths {
		config = append(config, "--config-dir", path)
	}
	if o.FileGrace > 0 {
		config = append(config, "--file-grace-period", o.FileGrace.String())
	}
	if err := add("config-watcher", "config-watcher", "config-watcher", watcher, client("config-watcher"), config); err != nil {
		return err
	}

	for i := range o.XDSServers {
		name := fmt.Sprintf("xds-server-%d", i)
		addr := netip.AddrPortFrom(addrs.at(xdsOffset+uint32(i)), SecurePort)
		if err := add(name, "xds-server", "xds-server", addr, client(name), []string{
			"--secure-address", addr.String(),
			"--config-watcher-address", watcher.String(),
			"--instance", name,
			"--peers", discovery(addrs, o.XDSServers),
		}); err != nil {
			return err
		}
	}
	return nil
}

// discovery is the list of xds-servers as agents and the xds-servers themselves take it.
func discovery(addrs *addresses, n int) string {
	var list []string
	for i := range n {
		list = append(list, netip.AddrPortFrom(addrs.at(xdsOffset+uint32(i)), SecurePort).String())
	}
	return strings.Join(list, ",")
}
