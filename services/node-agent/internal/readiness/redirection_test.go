package readiness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/userns"
)

// rules are those by which the proxy's own connections to its workload are redirected, as "node-agent init" and Istio's
// init container write them.
const rules = `table inet fairlead {
chain output {
type nat hook output priority -100;
oifname "lo" ip saddr 127.0.0.6 accept; oifname "lo" ip6 saddr ::6 accept
oifname "lo" ip daddr != 127.0.0.1 tcp dport != { 53, 15008 } redirect to :15006
oifname "lo" ip6 daddr != ::1 tcp dport != { 53, 15008 } redirect to :15006
}
}
`

// inside runs f in a new network namespace. Sockets and programs that f opens itself are of that.
func inside(t *testing.T, f func(run func(stdin, program string, args ...string))) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread and its namespace end with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		f(func(stdin, program string, args ...string) {
			cmd := exec.Command(program, args...)
			cmd.Stdin = strings.NewReader(stdin)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s %v: %v: %s", program, args, err, out)
			}
		})
	}()
	<-done
}

// Without rules redirection does not work, with them it does, whatever the proxy does with the connection.
func TestRedirectionIsTried(t *testing.T) {
	if userns.Again(t, "nft", "ip") {
		return
	}
	// proxies are what listens at the inbound port.
	proxies := map[string]func(net.Conn){
		"nothing": nil,
		"closes":  func(c net.Conn) { _ = c.Close() },
		"echoes": func(c net.Conn) {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		},
		"passes the connection on": func(c net.Conn) {
			defer c.Close()
			_, _ = c.Write([]byte("x"))
		},
	}
	for name, proxy := range proxies {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("the proxy %s, IPv6 %t", name, v6), func(t *testing.T) {
				inside(t, func(run func(stdin, program string, args ...string)) {
					run("", "ip", "link", "set", "lo", "up")
					r := NewRedirection(v6, nil, testkit.Logger(t))
					if err := r.Check(); !errors.Is(err, ErrNotRedirected) {
						t.Errorf("before it is tried: %v", err)
					}
					if err := r.try(t.Context()); v6 && (!errors.Is(err, ErrNotRedirected) || !strings.Contains(err.Error(), "no address ::6")) {
						t.Errorf("without the address: %v", err)
					}
					if v6 {
						run("", "ip", "-6", "addr", "add", "::6/128", "dev", "lo", "nodad")
					}
					if proxy != nil {
						lis, err := net.Listen("tcp", ":15006")
						if err != nil {
							t.Error(err)
							return
						}
						defer lis.Close()
						go func() {
							for {
								c, err := lis.Accept()
								if err != nil {
									return
								}
								go proxy(c)
							}
						}()
					}
					err := r.try(t.Context())
					for deadline := time.Now().Add(testkit.Patience); errors.Is(err, unix.ENETUNREACH) &&
						time.Now().Before(deadline); err = r.try(t.Context()) {
						time.Sleep(10 * time.Millisecond) // the kernel takes a while to use a new address of IPv6
					}
					if !errors.Is(err, ErrNotRedirected) || !strings.Contains(err.Error(), `the rules of "node-agent init"`) {
						t.Errorf("without rules: %v", err)
					}
					run(rules, "nft", "-f", "-")
					if err := r.try(t.Context()); err != nil {
						t.Errorf("with rules: %v", err)
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Second) // Run is in this thread, and tries at once
					defer cancel()
					if err := r.Run(ctx); err != nil || r.Check() != nil {
						t.Errorf("after Run: %v, %v", err, r.Check())
					}
				})
			})
		}
	}
}

// The port may be taken: another one does as well.
func TestRedirectionWhereThePortIsTaken(t *testing.T) {
	r := NewRedirection(false, nil, testkit.Logger(t))
	lis := testkit.Listen(t, netip.MustParseAddrPort("127.0.0.6:0"))
	r.port = lis.Addr().(*net.TCPAddr).AddrPort().Port()
	if err := r.try(t.Context()); !errors.Is(err, ErrNotRedirected) || !strings.Contains(err.Error(), "a connection to 127.0.0.6:") {
		t.Errorf("%v", err)
	}
}

// A proxy is not ready before what is required holds, whatever else does.
func TestReadinessRequiresRedirection(t *testing.T) {
	p := New(nil, testkit.PKI(t).NewSVID("shop", "web"), nil, nil)
	p.Require(func() error { return ErrNotRedirected })
	if err := p.Check(t.Context()); !errors.Is(err, ErrNotRedirected) {
		t.Errorf("%v", err)
	}
}
