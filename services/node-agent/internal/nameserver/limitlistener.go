package nameserver

import (
	"net"

	"fairlead.dev/pkg/fairshare"
)

// limitListener bounds the open connections by closing the oldest. So a client that holds many silent connections does
// not keep others out.
type limitListener struct {
	net.Listener
	open *fairshare.Pool
}

func newLimitListener(l net.Listener, most int) limitListener {
	return limitListener{l, fairshare.New(fairshare.Config{Places: most, Policy: fairshare.Oldest})}
}

// Accept implements net.Listener.
func (l limitListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	// All clients are one workload, which owns all connections.
	place, err := l.open.Take("", 0, func() { _ = conn.Close() })
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return limitedConn{conn, place}, nil
}

type limitedConn struct {
	net.Conn
	place *fairshare.Place
}

// Close implements net.Conn.
func (c limitedConn) Close() error {
	c.place.Release()
	return c.Conn.Close()
}
