package plan

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/proto/fairlead/contract"
)

// Issuer is the `iss` of the tokens that `fairlead up` issues.
const Issuer = "https://fairlead.local"

// serviceGrace is how long a service may take to close its streams and end.
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

	xdsServers := xdsAddresses(addrs, o.XDSServers)
	if err := add("ca", "ca", contract.CAAccount, netip.AddrPortFrom(caAddr, SecurePort), []string{
		"--grpc-address", netip.AddrPortFrom(caAddr, SecurePort).String(),
		"--ca-dir", l.CADir(),
		"--root-cert-out", l.RootCert(),
		"--dns-names", contract.SystemNamespace + "/" + contract.XDSServerAccount + "=" + discoveryNames,
		"--ip-addresses", contract.SystemNamespace + "/" + contract.XDSServerAccount + "=" + joinHosts(xdsServers),
		"--dns-names", contract.SystemNamespace + "/" + contract.CAAccount + "=" + caNames,
		"--ip-addresses", contract.SystemNamespace + "/" + contract.CAAccount + "=" + caAddr.String(),
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
	if err := add("config-watcher", "config-watcher", contract.ConfigWatcherAccount, watcher, client("config-watcher"), config); err != nil {
		return err
	}

	for i, addr := range xdsServers {
		name := fmt.Sprintf("xds-server-%d", i)
		if err := add(name, "xds-server", contract.XDSServerAccount, addr, client(name), []string{
			"--secure-address", addr.String(),
			"--config-watcher-address", watcher.String(),
			"--instance", name,
			"--peers", joinAddresses(xdsServers, netip.AddrPort.String),
		}); err != nil {
			return err
		}
	}
	return nil
}

// DNS names in the certificates of xds-server and ca: those by which Istio's agents dial and verify them by default,
// and those of deploy/kustomize. "localhost" is not among them, because agents that dial it verify
// istiod.istio-system.svc.
const (
	discoveryNames = "istiod.istio-system.svc,istiod.istio-system"
	caNames        = "ca.istio-system.svc,ca.istio-system"
)

// xdsAddresses returns the gRPC addresses of n xds-servers.
func xdsAddresses(addrs *addresses, n int) []netip.AddrPort {
	all := make([]netip.AddrPort, n)
	for i := range all {
		all[i] = netip.AddrPortFrom(addrs.at(xdsOffset+uint32(i)), SecurePort)
	}
	return all
}

// joinAddresses joins addresses with commas, as the flags of agents and services take them.
func joinAddresses(of []netip.AddrPort, text func(netip.AddrPort) string) string {
	all := lists.Map(of, text)
	return strings.Join(all, ",")
}

func joinHosts(of []netip.AddrPort) string {
	return joinAddresses(of, func(a netip.AddrPort) string { return a.Addr().String() })
}
