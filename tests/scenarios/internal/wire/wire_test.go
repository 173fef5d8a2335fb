package wire_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/wire"
)

// TestMain makes the user root of namespaces of its own.
func TestMain(m *testing.M) { userns.Main(m) }

// machine makes a network namespace of its own for the test, and returns what runs functions in it.
func machine(t *testing.T) func(func() error) error {
	t.Helper()
	userns.Need(t, "ip")
	host, err := netns.New(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	if err := host.Run("", "ip", "link", "set", "lo", "up"); err != nil {
		t.Fatal(err)
	}
	return host.In
}

func TestSniffer(t *testing.T) {
	in := machine(t)
	s, err := wire.Open(in, "lo")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	material, err := format.NewMaterial("server", format.Certificate{DNSNames: []string{"server"}}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := material.TLS()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, address string
		client        func(net.Conn) error
		server        func(net.Conn) error
		want          wire.Class
	}{
		{"plaintext", "127.0.0.1:0", func(c net.Conn) error { return say(c, "hello") }, hear, wire.Plaintext},
		{"plaintext over IPv6", "[::1]:0", func(c net.Conn) error { return say(c, "hello") }, hear, wire.Plaintext},
		{"server first", "127.0.0.1:0", hear, func(c net.Conn) error { return say(c, "220 ready") }, wire.Plaintext},
		{
			"TLS", "127.0.0.1:0", func(c net.Conn) error {
				return say(tls.Client(c, &tls.Config{RootCAs: material.Pool(), ServerName: "server"}), "hello")
			},
			func(c net.Conn) error { return hear(tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}})) }, wire.TLS,
		},
		{
			"TLS after a PROXY header", "127.0.0.1:0", func(c net.Conn) error {
				if err := say(c, "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"); err != nil {
					return err
				}
				return say(tls.Client(c, &tls.Config{RootCAs: material.Pool(), ServerName: "server"}), "hello")
			}, func(c net.Conn) error {
				if _, err := io.ReadFull(c, make([]byte, len("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"))); err != nil {
					return err
				}
				return hear(tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}}))
			}, wire.TLS,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			began := time.Now()
			var lis net.Listener
			var client net.Conn
			if err := in(func() (err error) {
				if lis, err = new(net.ListenConfig).Listen(t.Context(), "tcp", test.address); err != nil {
					return err
				}
				client, err = new(net.Dialer).DialContext(t.Context(), "tcp", lis.Addr().String())
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer lis.Close()
			defer client.Close()
			server, err := lis.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			done := make(chan error, 1)
			go func() { done <- test.server(server) }()
			if err := test.client(client); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			for {
				flows := s.Flows(began)
				at := slices.IndexFunc(flows, func(f wire.Flow) bool { return f.Client.String() == client.LocalAddr().String() })
				if at >= 0 {
					if f := flows[at]; f.Class != test.want || f.Server.String() != lis.Addr().String() {
						t.Errorf("saw %+v", f)
					}
					return
				}
				if ctx.Err() != nil {
					t.Fatalf("saw %+v", flows)
				}
				runtime.Gosched()
			}
		})
	}
}

func say(c net.Conn, text string) error {
	_, err := io.WriteString(c, text)
	return err
}

func hear(c net.Conn) error {
	_, err := c.Read(make([]byte, 100))
	return err
}

func TestXFCC(t *testing.T) {
	got := wire.ParseXFCC(`By=spiffe://a;Hash=1;Subject="CN=x,O=\"y;z\"";URI=spiffe://forged,By=spiffe://server;Hash=2;Subject="";URI=spiffe://client`)
	want := []wire.XFCC{{"spiffe://a", "spiffe://forged"}, {"spiffe://server", "spiffe://client"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v", got)
	}
	if got := wire.ParseXFCC(""); got != nil {
		t.Errorf("got %+v", got)
	}
}

func TestAccessLog(t *testing.T) {
	log := wire.AccessLog{Path: filepath.Join(t.TempDir(), "log")}
	write := func(text string) {
		f, err := os.OpenFile(log.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"peer":"spiffe://old"}` + "\n")
	from := log.End()
	write("not JSON\n" + `{"peer":"spiffe://client","remote":"198.18.0.9:41000","local":"198.18.0.7:9090","source":"127.0.0.6:33000","tls":"-"}` + "\n" + `{"peer":`)
	got, err := log.After(from)
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	if e := got[0]; e.Peer != "spiffe://client" || e.RemoteIP().String() != "198.18.0.9" || e.LocalPort() != 9090 || e.TLS != "" {
		t.Errorf("got %+v", e)
	}
}

// TestAccessLogOfAContainer: a container runtime writes the time and the stream before each line.
func TestAccessLogOfAContainer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "0.log")
	text := "2026-01-02T03:04:05.678901234Z stdout F {\"requestID\":\"a\"}\n2026-01-02T03:04:05.7Z stderr F no entry\n{\"requestID\":\"b\"}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	entries, err := wire.AccessLog{Path: file}.After(0)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 || entries[0].RequestID != "a" || entries[1].RequestID != "b" {
		t.Errorf("got %+v, want the requests a and b", entries)
	}
}
