// Package floor is what every figure is held against: a bare gRPC server that pushes recorded bytes to the same streams
// and waits for their acknowledgements. It generates and compares nothing.
package floor

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/gob"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"fairlead.dev/tests/bench/internal/wire"
)

// Script is what to push: to each node the messages with these numbers, in order.
type Script struct {
	Messages []Message
	Nodes    map[string][]int
	// Cold is true if a stream is pushed its messages when it opens, else all are when told to.
	Cold bool
}

// Message is a response without its nonce.
type Message struct {
	Type string
	Body []byte
}

// server is the floor's process.
type server struct {
	mu      sync.Mutex
	script  Script
	streams map[*stream]struct{}
	joined  sync.Cond
}

// stream is one proxy's.
type stream struct {
	grpc.ServerStream
	server *server
	node   string

	mu    sync.Mutex
	next  []int
	await map[string]string // nonce by type
	count int
}

// Files are what a floor over TLS needs, as paths of PEM files; empty means plaintext.
type Files struct{ Cert, Key, Roots string }

// Serve is the floor's process: it says on out where it listens and takes commands from in, until that ends. "load
// <file>" takes over a script, "wait <n>" waits for so many streams, "push" pushes the script to them; each is answered
// by "ok".
func Serve(in io.Reader, out io.Writer, files Files) error {
	s := &server{streams: map[*stream]struct{}{}}
	s.joined.L = &s.mu
	opts := []grpc.ServerOption{grpc.ForceServerCodecV2(wire.Codec{}), grpc.MaxRecvMsgSize(math.MaxInt32)}
	if files.Cert != "" {
		cfg, err := files.config()
		if err != nil {
			return err
		}
		opts = append(opts, grpc.Creds(credentials.NewTLS(cfg)))
	}
	g := grpc.NewServer(opts...)
	service, method, _ := strings.Cut(wire.Method[1:], "/")
	desc := wire.Desc
	desc.StreamName = method
	desc.Handler = func(_ any, st grpc.ServerStream) error { return s.handle(st) }
	g.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{desc}}, nil)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = g.Serve(lis) }() // ends with the process
	defer g.Stop()
	fmt.Fprintln(out, lis.Addr())
	for lines := bufio.NewScanner(in); lines.Scan(); {
		command, arg, _ := strings.Cut(lines.Text(), " ")
		switch command {
		case "load":
			err = s.load(arg)
		case "wait":
			err = s.wait(arg)
		case "push":
			err = s.push()
		default:
			err = fmt.Errorf("unknown command %q", command)
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "ok")
	}
	return nil
}

func (f Files) config() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(f.Roots)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(raw)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, Certificates: []tls.Certificate{cert},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
	}, nil
}

func (s *server) load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = Script{}
	return gob.NewDecoder(bufio.NewReaderSize(f, 1<<20)).Decode(&s.script)
}

// wait returns when there are so many streams.
func (s *server) wait(streams string) error {
	n, err := strconv.Atoi(streams)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.streams) < n {
		s.joined.Wait()
	}
	return nil
}

// push gives every stream its messages.
func (s *server) push() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if err := st.begin(s.script.Nodes[st.node]); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) handle(raw grpc.ServerStream) error {
	st := &stream{ServerStream: raw, server: s, await: map[string]string{}}
	defer func() {
		s.mu.Lock()
		delete(s.streams, st)
		s.mu.Unlock()
	}()
	for {
		var m wire.Message
		if err := raw.RecvMsg(&m); err != nil {
			return nil //nolint:nilerr // the client has gone, as it may
		}
		var err error
		if st.node == "" {
			st.node = wire.NodeID(m.Body)
			s.mu.Lock()
			s.streams[st] = struct{}{}
			s.joined.Broadcast()
			cold, next := s.script.Cold, s.script.Nodes[st.node]
			s.mu.Unlock()
			if cold {
				err = st.begin(next)
			}
		} else if nonce := wire.AckOf(m.Body); nonce != nil {
			err = st.acked(string(nonce))
		}
		m.Free()
		if err != nil {
			return err
		}
	}
}

func (st *stream) begin(next []int) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.next = next
	return st.flush()
}

func (st *stream) acked(nonce string) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	for url, n := range st.await {
		if n == nonce {
			delete(st.await, url)
		}
	}
	return st.flush()
}

// flush sends until a message must wait for the acknowledgement of the one before of its type.
func (st *stream) flush() error {
	for len(st.next) > 0 {
		m := st.server.script.Messages[st.next[0]]
		if _, waits := st.await[m.Type]; waits {
			return nil
		}
		st.count++
		nonce := fmt.Sprint(st.count)
		st.await[m.Type] = nonce
		st.next = st.next[1:]
		if err := st.SendMsg(wire.Parts{m.Body, wire.Nonce(nonce)}); err != nil {
			return nil //nolint:nilerr // the client has gone, as it may
		}
	}
	return nil
}
