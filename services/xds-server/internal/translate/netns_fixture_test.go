package translate_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// netns is a network namespace with a thread in it. Connections to 10.0.0.0/8 are redirected to port 15001, except
// those of the proxy's group.
type netns struct{ work chan func() }

const proxyGID = 1337

// newNetns needs root.
func newNetns(t *testing.T, addresses ...string) *netns {
	t.Helper()
	n := &netns{work: make(chan func())}
	ready := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread and the namespace end with the goroutine
		ready <- syscall.Unshare(syscall.CLONE_NEWNET)
		for f := range n.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatalf("new network namespace: %v", err)
	}
	t.Cleanup(func() { close(n.work) })
	run := func(stdin string, args ...string) {
		n.do(func() {
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Stdin = strings.NewReader(stdin)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %v: %s", args, err, out)
			}
		})
	}
	run("", "ip", "link", "set", "lo", "up")
	run("", "ip", "route", "add", "10.0.0.0/8", "dev", "lo")
	for _, address := range addresses {
		run("", "ip", "address", "add", address+"/32", "dev", "lo")
	}
	run(fmt.Sprintf(`
table ip fairlead {
	chain output {
		type nat hook output priority -100;
		meta skgid %d return
		ip daddr 10.0.0.0/8 meta l4proto tcp redirect to :15001
	}
}`, proxyGID), "nft", "-f", "-")
	if t.Failed() {
		t.FailNow()
	}
	return n
}

// do runs f on the namespace's thread; sockets and processes that f creates are in the namespace.
func (n *netns) do(f func()) {
	done := make(chan struct{})
	n.work <- func() { defer close(done); f() }
	<-done
}

func (n *netns) listen(t *testing.T, address string) net.Listener {
	t.Helper()
	var l net.Listener
	var err error
	n.do(func() { l, err = net.Listen("tcp", address) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func (n *netns) dial(address string) (conn net.Conn, err error) {
	n.do(func() { conn, err = net.DialTimeout("tcp", address, 5*time.Second) })
	return conn, err
}

// banner is a server that sends the first bytes, as MySQL does, and then echoes.
func (n *netns) banner(t *testing.T, address, text string) {
	t.Helper()
	serve(n.listen(t, address), func(conn net.Conn) {
		_, _ = fmt.Fprintln(conn, text)
		_, _ = io.Copy(conn, conn)
	})
}

func serve(l net.Listener, f func(net.Conn)) {
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				f(conn)
			}()
		}
	}()
}

// greeting connects and returns the first line, without sending anything.
func (n *netns) greeting(address string) (string, error) {
	conn, err := n.dial(address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return line(conn)
}

func line(conn net.Conn) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		return "", err
	}
	got, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(got), err
}

// handshake connects with TLS and returns the first line.
func (n *netns) handshake(address, serverName string) (string, error) {
	conn, err := n.dial(address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return line(tls.Client(conn, &tls.Config{ServerName: serverName, InsecureSkipVerify: true}))
}

// web answers every request with the text.
func (n *netns) web(t *testing.T, address, text string) {
	t.Helper()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })}
	l := n.listen(t, address)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
}

// get requests a host's page at an address.
func (n *netns) get(address, host string) (string, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return n.dial(address)
	}}
	response, err := (&http.Client{Transport: transport, Timeout: testkit.Patience}).Get("http://" + host + "/")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", response.Status)
	}
	return string(body), err
}
