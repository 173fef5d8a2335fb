package config

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// DNS says where the agent answers DNS queries, and whom it asks itself.
type DNS struct {
	// Addresses, by UDP and TCP.
	Addresses []netip.AddrPort
	Resolv    *dns.ClientConfig
}

// names decides whether the agent answers DNS queries: Envoy is needed for what they are answered with.
func (c *Config) names(f Flags, env *environment, h Host) error {
	if !env.boolean(dnsCapture, false) || c.NoEnvoy {
		return nil
	}
	addresses, err := dnsAddresses(cmp.Or(f.DNSAddress, env.get("DNS_PROXY_ADDR"), defaultDNSAddress))
	if err != nil {
		return err
	}
	resolv, err := readResolvConf(cmp.Or(f.ResolvConf, defaultResolvConf), h)
	if err != nil {
		return err
	}
	c.DNS = &DNS{Addresses: addresses, Resolv: resolv}
	return nil
}

// dnsAddresses turns "host:port" into addresses: localhost is the loopback addresses this machine has.
func dnsAddresses(address string) ([]netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--dns-address %q: want host:port", address)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("--dns-address %q: want a port, 0 to 65535", address)
	}
	if !strings.EqualFold(host, "localhost") {
		ip, err := netip.ParseAddr(host)
		if err != nil {
			return nil, fmt.Errorf("--dns-address %q: want an IP address or localhost", address)
		}
		return []netip.AddrPort{netip.AddrPortFrom(ip, uint16(number))}, nil
	}
	out := []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(number))}
	if probe, err := net.ListenUDP("udp6", &net.UDPAddr{IP: net.IPv6loopback}); err == nil {
		_ = probe.Close()
		out = append(out, netip.AddrPortFrom(netip.IPv6Loopback(), uint16(number)))
	}
	return out, nil
}

// readResolvConf reads a resolv.conf. Its servers are IP addresses.
func readResolvConf(path string, h Host) (*dns.ClientConfig, error) {
	raw, err := h.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--resolv-conf: %w", err)
	}
	conf, err := dns.ClientConfigFromReader(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("--resolv-conf: %s: %w", path, err)
	}
	for _, server := range conf.Servers {
		if _, err := netip.ParseAddr(server); err != nil {
			return nil, fmt.Errorf("--resolv-conf: %s: nameserver %q: want an IP address", path, server)
		}
	}
	return conf, nil
}
