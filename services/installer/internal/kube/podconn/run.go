package podconn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"k8s.io/client-go/tools/remotecommand"
)

// ErrTooLong means that a program has printed more than its caller takes.
var ErrTooLong = errors.New("the output is too long")

// Run runs a program in a container and returns what it prints, at most limit bytes. An error has what the program
// says on its standard error.
func (p *Pod) Run(ctx context.Context, container string, command []string, limit int) ([]byte, error) {
	target := p.urls("exec")
	query := target.Query()
	query.Set("container", container)
	query.Set("stdout", "true")
	query.Set("stderr", "true")
	query["command"] = command
	target.RawQuery = query.Encode()
	bySPDY, err := remotecommand.NewSPDYExecutor(p.config, http.MethodPost, target)
	if err != nil {
		return nil, err
	}
	byWebSocket, err := remotecommand.NewWebSocketExecutor(p.config, http.MethodGet, target.String())
	if err != nil {
		return nil, err
	}
	executor, err := remotecommand.NewFallbackExecutor(byWebSocket, bySPDY, fallBack)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out, said := &bounded{limit: limit, over: func() { cancel(ErrTooLong) }}, &bounded{limit: maxError}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: said})
	if errors.Is(context.Cause(ctx), ErrTooLong) {
		err = fmt.Errorf("%w: more than %d bytes", ErrTooLong, limit)
	}
	if err != nil {
		if text := strings.TrimSpace(said.String()); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return nil, p.explain(fmt.Errorf("container %s, %s: %w", container, strings.Join(command, " "), err))
	}
	return out.Bytes(), nil
}

// bounded keeps at most limit bytes, and calls over, if set, at the first beyond.
type bounded struct {
	bytes.Buffer
	limit int
	over  func()
}

// ReadFrom hides that of the buffer, which knows no limit.
func (b *bounded) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{b}, r) }

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	room := max(b.limit-b.Len(), 0)
	if len(p) > room && b.over != nil {
		b.over()
	}
	_, _ = b.Buffer.Write(p[:min(len(p), room)])
	return len(p), nil
}
