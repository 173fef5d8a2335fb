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

// DNS configures the DNS proxy (package nameserver).
type DNS struct {
	// Addresses to listen on, by UDP and TCP.
	Addresses []netip.AddrPort
	// Resolv has the upstream servers and search domains of resolv.conf.
	Resolv *dns.ClientConfig
}

// dnsServer makes a gateway answer DNS queries, which nothing redirects to it.
const dnsServer = "ISTIO_META_ENABLE_DNS_SERVER"

// parseDNS sets c.DNS if DNS capture is on, or the gateway is a DNS server. Without an Envoy there is no name table, so
// there is no DNS proxy.
func (c *Config) parseDNS(f Flags, env *environment, h Host) error {
	capture, server := env.boolean(dnsCapture, false), env.boolean(dnsServer, false)
	if c.NoEnvoy || !capture && (!server || c.Role != Router) {
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

// dnsAddresses parses "host:port"; localhost stands for all loopback addresses of this machine.
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

// readResolvConf reads a resolv.conf, whose servers must be IP addresses.
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
