package echo

import (
	"bufio"
	"context"
	"io"
	"net/http"

	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/format"
)

// serve answers a request of HTTP/1, HTTP/2 or gRPC.
func (p *port) serve(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok {
		http.Error(w, "a connection of somebody else", http.StatusInternalServerError)
		return
	}
	if p.beside != nil { // what proxies ask and tell is no request of a call
		p.beside.ServeHTTP(w, r)
		return
	}
	s := c.seen()
	s.Method, s.Path, s.Host, s.Headers, s.Call = r.Method, r.RequestURI, r.Host, r.Header, r.Header.Get(CallHeader)
	switch {
	case r.ProtoMajor == 2:
		s.Version = "2"
	case r.ProtoMinor == 0:
		s.Version = "1.0"
	default:
		s.Version = "1.1"
	}
	b := behaviourOf(r.RequestURI, r.Header.Get(BehaviourHeader))
	id := r.Header.Get("X-Request-Id")
	turn := s.count(&p.server.turns, id)
	code := b.code(&p.server.decks, turn)
	tunnels := p.App == format.AppConnect && (r.Method == http.MethodConnect || r.Method == http.MethodPost)
	asGRPC := IsGRPC(r.Header)
	switch {
	case tunnels, isWebSocket(r):
	case asGRPC:
		s.Body = grpcBody(r.Body)
		s.BodyLength = int64(len(s.Body))
	default:
		kept, _ := io.ReadAll(io.LimitReader(r.Body, keptBody))
		rest, _ := io.Copy(io.Discard, r.Body)
		s.Body, s.BodyLength = string(kept), int64(len(kept))+rest
	}
	switch {
	case asGRPC:
		s.Status = int(grpcStatus(code))
	case isWebSocket(r):
		s.Status = http.StatusSwitchingProtocols
	case r.Method == http.MethodConnect && !tunnels:
		s.Status = http.StatusMethodNotAllowed // only a proxy opens tunnels
	default:
		s.Status = httpStatus(code)
	}
	p.server.journal.add(s)
	if wait.Pause(r.Context(), b.delay) != nil {
		return
	}
	switch {
	case b.cut:
		c.cut()
		panic(http.ErrAbortHandler)
	case tunnels:
		p.tunnel(w, r)
	case asGRPC:
		answerGRPC(w, s, &b, grpcStatus(code))
	case s.Status == http.StatusSwitchingProtocols:
		p.webSocket(w, r, s, &b)
	default:
		p.answer(w, r, s, &b)
	}
}

// count numbers the request among those with its x-request-id and returns a function that tells whose turn it is among
// codes.
func (s *Seen) count(t *turns, id string) func() int {
	if id == "" {
		id = s.Call
	}
	s.Attempt = 1
	if s.Shadow() {
		id += " mirrored" // does not take the turn of what it is a copy of
	}
	if id != "" {
		s.Attempt = t.next(id)
	}
	return func() int { return t.shared(id, s.Attempt) }
}

func (p *port) answer(w http.ResponseWriter, r *http.Request, s *Seen, b *behaviour) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	for _, pair := range b.headers {
		h.Add(pair[0], pair[1])
	}
	if s.Status == http.StatusNoContent || s.Status == http.StatusNotModified || r.Method == http.MethodHead {
		h.Del("Content-Type")
		w.WriteHeader(s.Status)
		return
	}
	w.WriteHeader(s.Status)
	_, _ = w.Write(s.encode(b.size))
}

// webSocket opens one and answers each text message with what was seen.
func (p *port) webSocket(w http.ResponseWriter, r *http.Request, s *Seen, b *behaviour) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	head := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " +
		AcceptKey(r.Header.Get("Sec-Websocket-Key")) + "\r\n"
	for _, pair := range b.headers {
		head += pair[0] + ": " + pair[1] + "\r\n"
	}
	if _, err := rw.WriteString(head + "\r\n"); err != nil || rw.Flush() != nil {
		return
	}
	for {
		text, err := ReadText(rw, false)
		if err != nil {
			return
		}
		answer := *s
		answer.Body, answer.BodyLength = string(text[:min(len(text), keptBody)]), int64(len(text))
		if WriteText(rw, answer.encode(b.size), false) != nil || rw.Flush() != nil {
			return
		}
	}
}

// tunnel connects to the authority and copies both ways: after CONNECT on the connection itself, after POST in the
// bodies.
func (p *port) tunnel(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), handshakeTime)
	defer cancel()
	far, err := p.server.names.DialName(ctx, "tcp", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer far.Close()
	control := http.NewResponseController(w)
	if r.Method == http.MethodConnect && r.ProtoMajor == 1 {
		near, rw, err := control.Hijack()
		if err != nil {
			return
		}
		defer near.Close()
		if _, err := rw.WriteString("HTTP/1.1 200 OK\r\n\r\n"); err != nil || rw.Flush() != nil {
			return
		}
		join(rw.Reader, near, far)
		return
	}
	_ = control.EnableFullDuplex()
	w.WriteHeader(http.StatusOK)
	if control.Flush() != nil {
		return
	}
	join(r.Body, flushing{w, control}, far)
}

type flushing struct {
	io.Writer
	control *http.ResponseController
}

// Write implements io.Writer.
func (f flushing) Write(b []byte) (int, error) {
	n, err := f.Writer.Write(b)
	if err == nil {
		err = f.control.Flush()
	}
	return n, err
}

type halfCloser interface{ CloseWrite() error }

// join copies until the far side has said all; the near side's end is passed on.
func join(from io.Reader, to io.Writer, far io.ReadWriter) {
	go func() {
		_, _ = io.Copy(far, from)
		if half, ok := far.(halfCloser); ok {
			_ = half.CloseWrite()
		}
	}()
	_, _ = io.Copy(to, far)
}

// lines answers the line protocol until the peer ends.
func (c *conn) lines(ctx context.Context) {
	for number := 1; ; number++ {
		line, s, err := c.line()
		if err != nil {
			return
		}
		b := behaviourOf(line.Path, "")
		s.Attempt = number
		s.Status = httpStatus(b.code(&c.port.server.decks, func() int { return number }))
		c.port.server.journal.add(s)
		if wait.Pause(ctx, b.delay) != nil {
			return
		}
		if b.cut {
			c.cut()
			return
		}
		if _, err := c.Write(append(s.encode(b.size), '\n')); err != nil {
			return
		}
	}
}

// line reads a request; what is not one is seen as a body.
func (c *conn) line() (Line, *Seen, error) {
	var line Line
	raw, err := readLine(c.reader)
	if err != nil {
		return line, nil, err
	}
	s := c.seen()
	if !decodeLine(raw, &line) {
		line.Body = string(raw)
	}
	s.Call, s.Path, s.Body, s.BodyLength = line.Call, line.Path, line.Body, int64(len(line.Body))
	s.Body = s.Body[:min(len(s.Body), keptBody)]
	return line, s, nil
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, more, err := r.ReadLine()
		if err != nil {
			return nil, err
		}
		if line = append(line, part...); !more || len(line) > largest {
			return line, nil
		}
	}
}
