package issuing

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1alpha1"
)

// agent is one of many that connect once, each from an address of its own, as Pods have, and ask for one certificate.
// What it sends has been made before, so that thousands of them in one process cost less than the server: in a mesh,
// each has a machine's core.
type agent struct {
	from net.IP
	// sent is the whole of the client's side of HTTP/2.
	sent []byte
	tls  *tls.Config
}

// newAgent makes the agent of a workload. server is the server's certificate.
func (s *IstioAPI) newAgent(from net.IP, w *Workload, token string, server *x509.Certificate) (*agent, error) {
	message, err := proto.Marshal(&security.IstioCertificateRequest{Csr: w.CSR})
	if err != nil {
		return nil, err
	}
	var head, out bytes.Buffer
	block := hpack.NewEncoder(&head)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "https"}, {":path", security.IstioCertificateService_CreateCertificate_FullMethodName},
		{":authority", s.serverName}, {"content-type", "application/grpc"}, {"user-agent", "agent"}, {"te", "trailers"},
		{"grpc-timeout", fmt.Sprintf("%dm", agentTimeout.Milliseconds())}, {"authorization", "Bearer " + token},
	} {
		if err := block.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return nil, err
		}
	}
	prefixed := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...) //nolint:gosec // some KiB
	out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&out, nil)
	if err := errors.Join(framer.WriteSettings(),
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true}),
		framer.WriteData(1, true, prefixed)); err != nil {
		return nil, err
	}
	cfg := s.tls(nil)
	cfg.NextProtos = []string{"h2"}
	cfg.InsecureSkipVerify = true // VerifyConnection compares with a certificate whose chain has been verified
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		if !state.PeerCertificates[0].Equal(server) {
			return errors.New("the server shows another certificate than before")
		}
		return nil
	}
	return &agent{from: from, sent: out.Bytes(), tls: cfg}, nil
}

// serverCertificate verifies the server's chain and returns its leaf.
func (s *IstioAPI) serverCertificate(ctx context.Context) (*x509.Certificate, error) {
	conn, err := (&tls.Dialer{Config: s.tls(nil)}).DialContext(ctx, "tcp", s.address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	secured, _ := conn.(*tls.Conn)
	return secured.ConnectionState().PeerCertificates[0], nil
}

// ask connects, asks and closes. The error says that there is no certificate. before is called when all that does not
// need the server has been made, its part of the handshake included.
func (a *agent) ask(ctx context.Context, address string, before func()) error {
	late := &lateConn{connect: func() (net.Conn, error) {
		before()
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: a.from}, Timeout: agentTimeout}
		raw, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return raw, raw.SetDeadline(time.Now().Add(agentTimeout))
	}}
	defer late.Close()
	conn := tls.Client(late, a.tls)
	if err := conn.HandshakeContext(context.Background()); err != nil { // the deadline ends it
		return err
	}
	if _, err := conn.Write(a.sent); err != nil {
		return err
	}
	return answered(conn)
}

// lateConn connects when it is first written to.
type lateConn struct {
	net.Conn

	connect func() (net.Conn, error)
}

func (c *lateConn) Write(b []byte) (n int, err error) {
	if c.Conn == nil {
		if c.Conn, err = c.connect(); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(b)
}

func (c *lateConn) Close() error {
	if c.Conn == nil {
		return nil
	}
	return c.Conn.Close()
}

// answered reads frames until the call has ended, with a message or without.
func answered(conn io.Reader) error {
	framer := http2.NewFramer(io.Discard, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	bytes := 0
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := frame.(type) {
		case *http2.DataFrame:
			bytes += len(f.Data())
		case *http2.MetaHeadersFrame:
			status, text := "", ""
			for _, field := range f.RegularFields() {
				switch field.Name {
				case "grpc-status":
					status = field.Value
				case "grpc-message":
					text = field.Value
				}
			}
			switch {
			case status == "0" && bytes > 0:
				return nil
			case f.StreamEnded():
				return fmt.Errorf("gRPC status %s: %s", status, text)
			}
		case *http2.GoAwayFrame:
			return fmt.Errorf("the server goes away: %s", f.ErrCode)
		case *http2.RSTStreamFrame:
			return fmt.Errorf("the server has ended the stream: %s", f.ErrCode)
		}
	}
}
