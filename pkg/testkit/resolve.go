package testkit

import (
	"context"
	"net"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Resolve makes net.DefaultResolver find an IPv4 address for every name, the one that address returns at each question,
// until the test ends. Names have no IPv6 address.
func Resolve(t testing.TB, address func() [4]byte) {
	t.Helper()
	conn := Must(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		for buffer := make([]byte, 1024); ; {
			n, from, err := conn.ReadFrom(buffer)
			var m dnsmessage.Message
			if err != nil || m.Unpack(buffer[:n]) != nil {
				return
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class},
					Body: &dnsmessage.AResource{A: address()}}}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	usual := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = usual })
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}
