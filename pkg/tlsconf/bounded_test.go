package tlsconf_test

import (
	"io"
	"net"
	"strings"
	"testing"

	"fairlead.dev/pkg/tlsconf"
)

// endless is a connection that can always be read from.
type endless struct{ net.Conn }

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestBoundedConn(t *testing.T) {
	const bound = 1000
	c := tlsconf.Bound(endless{}, bound)
	refused := func() {
		t.Helper()
		n, err := io.Copy(io.Discard, c)
		if n != bound || err == nil || !strings.Contains(err.Error(), "more than 1000 bytes") {
			t.Errorf("%d bytes were read, then %v", n, err)
		}
	}
	refused()
	c.Renew()
	refused()
	c.Unbind()
	c.Unbind()
	if n, err := io.CopyN(io.Discard, c, 10*bound); n != 10*bound || err != nil {
		t.Errorf("unbound: %d bytes, then %v", n, err)
	}
}
