package caller

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"fairlead.dev/tests/scenarios/internal/echo"
	"fairlead.dev/tests/scenarios/internal/resolver"
)

// keptBody is how much of an answer's body is kept, mostBody how much is read.
const (
	keptBody = 1 << 20
	mostBody = 64 << 20
)

// redirects is how many are followed.
const redirects = 10

// request makes one request, and those it is redirected to.
func (w *worker) request(ctx context.Context, id string) *Result {
	result := &Result{ID: id, Start: time.Now()}
	defer func() { result.Duration = time.Since(result.Start) }()
	ctx, cancel := context.WithTimeout(ctx, w.call.Timeout.D())
	defer cancel()
	t, err := parse(w.call.URL)
	if err != nil {
		result.fail(talking, err)
		return result
	}
	m := message{method: w.call.Method, body: w.call.Body}
	for range redirects + 1 {
		w.once(ctx, &t, m, result)
		location := result.Header.Get("Location")
		if !w.call.FollowRedirects || result.Err != nil || result.Status < 300 || result.Status > 399 || location == "" {
			return result
		}
		if t, err = t.follow(location); err != nil {
			result.fail(talking, err)
			return result
		}
		if result.Status < http.StatusTemporaryRedirect && m.method != http.MethodHead {
			m = message{method: http.MethodGet}
		}
		m.redirected = true
	}
	result.fail(talking, fmt.Errorf("%w: more than %d redirects", errURL, redirects))
	return result
}

// message is what is sent to a target.
type message struct {
	method, body string
	redirected   bool
}

// once makes one request, without following.
func (w *worker) once(ctx context.Context, t *target, m message, result *Result) {
	result.Status, result.Header, result.Body, result.BodyLength, result.Seen = 0, nil, nil, 0, nil
	if t.scheme == "dns" {
		result.Sent = "A, AAAA " + t.host
		ips, err := w.names.Lookup(ctx, t.host)
		if err != nil {
			result.fail(lookingUp, err)
		}
		result.Addresses = resolver.Sorted(ips)
		return
	}
	if t.isGRPC() && w.From.Bootstrap != "" && w.Via == nil {
		w.proxyless(ctx, t, result)
		return
	}
	l, ok := w.take(ctx, t, result)
	if !ok {
		if result.Sent = w.call.URL; t.isGRPC() {
			result.grpcFailed()
		}
		return
	}
	if end, ok := ctx.Deadline(); ok && l.h2 == nil {
		_ = l.SetDeadline(end)
	}
	fresh := !l.used
	switch {
	case t.isLine():
		w.line(l, t, result)
	case l.h2 != nil:
		w.http2(ctx, l, t, m, result)
	default:
		w.http1(l, t, m, result)
	}
	if fresh && l.asked && result.Failed(Reset) && !result.Failed(TLS) {
		result.Classes = append(result.Classes, TLS)
	}
}

// field is a header.
type field struct{ name, value string }

// fields are the headers of a request beside Host, in order: those that the protocol needs, unless the call has its
// own, then the call's by name.
func (w *worker) fields(t *target, id string, needed ...field) (host string, all []field) {
	host = t.authority
	said := map[string]bool{"host": true}
	var own []field
	for _, name := range slices.Sorted(maps.Keys(w.call.Headers)) {
		lower := strings.ToLower(name)
		said[lower] = true
		for i, value := range w.call.Headers[name] {
			if lower == "host" && i == 0 {
				host = value
				continue
			}
			own = append(own, field{name, value})
		}
	}
	for _, f := range append(needed, field{echo.CallHeader, id}) {
		if !said[strings.ToLower(f.name)] {
			all = append(all, f)
		}
	}
	all = append(all, own...)
	if w.cookies != nil && !said["cookie"] {
		var pairs []string
		for _, c := range w.cookies.Cookies(w.jarURL(t, host)) {
			pairs = append(pairs, c.Name+"="+c.Value)
		}
		if len(pairs) > 0 {
			all = append(all, field{"cookie", strings.Join(pairs, "; ")})
		}
	}
	return host, all
}

func (w *worker) jarURL(t *target, host string) *url.URL {
	scheme := "http"
	if t.hasTLS() {
		scheme = "https"
	}
	path, _, _ := strings.Cut(t.path, "?")
	return &url.URL{Scheme: scheme, Host: host, Path: path}
}

func (m *message) verb(usual string) string {
	switch {
	case m.method != "":
		return m.method
	case m.body != "" || usual == http.MethodPost:
		return http.MethodPost
	}
	return http.MethodGet
}

// http1 writes a request as it is and reads the answer.
func (w *worker) http1(l *link, t *target, m message, result *Result) {
	method := m.verb("")
	var needed []field
	opens := t.scheme == "ws" || t.scheme == "wss"
	if opens {
		var key [16]byte
		_, _ = rand.Read(key[:]) // never fails
		method = http.MethodGet
		needed = []field{{"Upgrade", "websocket"}, {"Connection", "Upgrade"}, {"Sec-WebSocket-Version", "13"},
			{"Sec-WebSocket-Key", base64.StdEncoding.EncodeToString(key[:])}}
	} else if m.body != "" || method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch {
		needed = []field{{"Content-Length", strconv.Itoa(len(m.body))}}
	}
	host, fields := w.fields(t, result.ID, needed...)
	version := "1.1"
	if w.call.Version == "1.0" {
		version = "1.0"
	}
	where := w.target(t, m)
	if w.call.Target == "" && method == http.MethodConnect {
		where = host
	}
	var head strings.Builder
	fmt.Fprintf(&head, "%s %s HTTP/%s\r\nHost: %s\r\n", method, where, version, host)
	for _, f := range fields {
		fmt.Fprintf(&head, "%s: %s\r\n", f.name, f.value)
	}
	result.Sent = head.String()
	head.WriteString("\r\n")
	if !opens {
		head.WriteString(m.body)
	}
	_, writing := io.WriteString(l, head.String())
	resp, err := readResponse(l.reader, method) //nolint:bodyclose // it ends with the connection
	if err != nil {
		if writing != nil && errors.Is(err, io.EOF) {
			err = writing
		}
		w.done(l, false)
		result.fail(talking, fmt.Errorf("%w: %w", errNoAnswer, err))
		return
	}
	w.answered(t, host, resp, result)
	switch {
	case opens && resp.StatusCode == http.StatusSwitchingProtocols:
		w.talk(l, result)
		w.done(l, false)
		return
	case method == http.MethodConnect && resp.StatusCode/100 == 2:
		w.through(l, host, result)
		w.drop(l)
		return
	}
	result.read(resp.Body)
	w.done(l, result.Err == nil && !resp.Close && version == "1.1")
}

// readResponse skips what is said before the answer.
func readResponse(r *bufio.Reader, method string) (*http.Response, error) {
	for {
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil || resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
	}
}

// tunnelTime is how long an application at the other end of a tunnel may take.
const tunnelTime = 2 * time.Second

// through asks what is at the other end of a tunnel, which CONNECT has opened, what it sees. If that does not speak
// HTTP, the tunnel is all there is.
func (w *worker) through(l *link, to string, result *Result) {
	_ = l.SetDeadline(time.Now().Add(tunnelTime))
	if _, err := fmt.Fprintf(l, "GET / HTTP/1.1\r\nHost: %s\r\n%s: %s\r\n\r\n", to, echo.CallHeader, result.ID); err != nil {
		return
	}
	resp, err := readResponse(l.reader, http.MethodGet) //nolint:bodyclose // it ends with the connection
	if err != nil {
		return
	}
	if result.read(resp.Body); result.Err != nil {
		result.Err, result.Classes, result.Body, result.BodyLength = nil, nil, nil, 0
	}
}

func (w *worker) answered(t *target, host string, resp *http.Response, result *Result) {
	result.Status, result.Header = resp.StatusCode, resp.Header
	result.Version = fmt.Sprintf("%d.%d", resp.ProtoMajor, resp.ProtoMinor)
	if resp.ProtoMajor == 2 {
		result.Version = "2"
	}
	if w.cookies != nil {
		w.cookies.SetCookies(w.jarURL(t, host), resp.Cookies())
	}
}

// read takes the body of an answer.
func (r *Result) read(body io.Reader) {
	kept, err := io.ReadAll(io.LimitReader(body, keptBody))
	rest := int64(0)
	if err == nil {
		rest, err = io.Copy(io.Discard, io.LimitReader(body, mostBody))
	}
	r.Body, r.BodyLength = kept, int64(len(kept))+rest
	if err != nil {
		r.fail(talking, fmt.Errorf("the answer ends early: %w", err))
		return
	}
	r.Seen = echo.Decode(kept)
}

// talk sends one message over a WebSocket and reads the answer.
func (w *worker) talk(l *link, result *Result) {
	rw := bufio.NewReadWriter(l.reader, bufio.NewWriter(l))
	err := echo.WriteText(rw, []byte(w.call.Body), true)
	if err == nil {
		err = rw.Flush()
	}
	var text []byte
	if err == nil {
		text, err = echo.ReadText(rw, true)
	}
	if err != nil {
		result.fail(talking, fmt.Errorf("the WebSocket opened, and then: %w", err))
		return
	}
	result.Body, result.BodyLength, result.Seen = text, int64(len(text)), echo.Decode(text)
}

// http2 makes a request of HTTP/2, which may be gRPC.
func (w *worker) http2(ctx context.Context, l *link, t *target, m message, result *Result) {
	usual, body := "", m.body
	var needed []field
	if t.isGRPC() {
		raw, err := echo.EncodeMessage(m.body)
		if err != nil {
			result.fail(talking, err)
			return
		}
		usual, body, needed = http.MethodPost, string(raw), []field{{"Content-Type", echo.GRPCType}, {"Te", "trailers"}}
	}
	host, fields := w.fields(t, result.ID, needed...)
	where := w.target(t, m)
	if !strings.HasPrefix(where, "/") && where != "*" {
		result.fail(talking, fmt.Errorf("%w: target %q over HTTP/2: begin it with a slash, or make it *", errURL, where))
		w.done(l, true)
		return
	}
	req := (&http.Request{
		Method: m.verb(usual), Host: host, URL: asURL(t, where, host), Header: http.Header{"User-Agent": {""}},
	}).WithContext(ctx)
	for _, f := range fields {
		if http.CanonicalHeaderKey(f.name) == "User-Agent" {
			req.Header.Del("User-Agent")
		}
		req.Header.Add(f.name, f.value)
	}
	if body != "" {
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
	result.Sent = fmt.Sprintf("%s %s HTTP/2\r\nHost: %s\r\n", req.Method, where, host)
	for _, f := range fields {
		result.Sent += f.name + ": " + f.value + "\r\n"
	}
	resp, err := l.h2.RoundTrip(req)
	if err != nil {
		result.fail(talking, fmt.Errorf("%w: %w", errNoAnswer, err))
	} else {
		w.answered(t, host, resp, result)
		result.read(resp.Body)
		resp.Body.Close()
	}
	if t.isGRPC() {
		result.grpc(resp)
	}
	w.done(l, l.h2.CanTakeNewRequest())
}

// target is what a request says that it is for: what the call says, unless a redirect says otherwise.
func (w *worker) target(t *target, m message) string {
	if w.call.Target != "" && !m.redirected {
		return w.call.Target
	}
	return t.path
}

// asURL is a URL whose request target is the path as written.
func asURL(t *target, path, host string) *url.URL {
	u := &url.URL{Scheme: "http", Host: host, Opaque: path}
	if t.hasTLS() {
		u.Scheme = "https"
	}
	if strings.HasPrefix(path, "//") { // which Opaque takes for an authority
		path, query, has := strings.Cut(path, "?")
		plain, err := url.PathUnescape(path)
		if err != nil {
			plain = path
		}
		u.Opaque, u.Path, u.RawPath, u.RawQuery, u.ForceQuery = "", plain, path, query, has && query == ""
	}
	return u
}

// grpc reads gRPC's status and message out of an answer.
func (r *Result) grpc(resp *http.Response) {
	if resp == nil {
		r.grpcFailed()
		return
	}
	text := resp.Trailer.Get("Grpc-Status")
	r.GRPCMessage = resp.Trailer.Get("Grpc-Message")
	if text == "" {
		text, r.GRPCMessage = resp.Header.Get("Grpc-Status"), resp.Header.Get("Grpc-Message")
	}
	for name, values := range resp.Trailer {
		r.Header[name] = append(r.Header[name], values...)
	}
	code := echo.CodeOfHTTP(r.Status)
	n, err := strconv.Atoi(text)
	switch {
	case err == nil:
		code = codes.Code(n) //nolint:gosec // whatever it is, it is what was sent
	case r.Status == http.StatusOK:
		code = codes.Unknown
	}
	if r.Err != nil && text == "" {
		r.grpcFailed()
		return
	}
	r.GRPC, r.Err, r.Classes = &code, nil, nil
	if message, err := echo.DecodeMessage(r.Body); err == nil && message != "" {
		r.Body = []byte(message)
		r.Seen = echo.Decode(r.Body)
	}
}

// grpcFailed says an error as gRPC's clients do.
func (r *Result) grpcFailed() {
	code := codes.Unavailable
	if r.Failed(Timeout) {
		code = codes.DeadlineExceeded
	}
	r.GRPC = &code
}
