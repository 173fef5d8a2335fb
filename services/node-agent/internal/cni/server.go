package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/node-agent/internal/cni/kube"
	"fairlead.dev/services/node-agent/internal/cni/plugin"
)

// Limits.
const (
	// atOnce is how many plugins may ask at the same time. Others wait.
	atOnce = 64
	// findWithin is how long a Pod that is asked about is looked for.
	findWithin = 10 * time.Second
	// findAgain is the pause between looks.
	findAgain = 250 * time.Millisecond
	// acceptAgain is the pause after the first connection that cannot be accepted. It doubles with each, up to
	// maxAcceptAgain.
	acceptAgain    = 5 * time.Millisecond
	maxAcceptAgain = time.Second
)

// podReader reads Pods; *kube.Client implements it.
type podReader interface {
	Pod(ctx context.Context, namespace, name string) (*kube.Pod, error)
}

// server answers the plugin, on a socket that only root can reach.
type server struct {
	pods    podReader
	metrics *metrics
	log     *slog.Logger
}

// listen makes the socket, in place of one that an earlier agent has left.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	lis, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	// A later agent may have replaced the socket by its own when this one closes: it must stay.
	lis.(*net.UnixListener).SetUnlinkOnClose(false)
	return lis, os.Chmod(path, 0o600)
}

// serve answers until ctx ends. A connection that cannot be accepted, as when there are no file handles, waits in the
// socket's queue until one can be.
func (s *server) serve(ctx context.Context, lis net.Listener) error {
	stop := context.AfterFunc(ctx, func() { lis.Close() })
	defer stop()
	room := make(chan struct{}, atOnce)
	for {
		room <- struct{}{}
		conn, err := s.accept(ctx, lis)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		go func() {
			defer func() { <-room }()
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(2 * findWithin))
			var r plugin.Request
			if err := json.NewDecoder(io.LimitReader(conn, plugin.MaxMessage)).Decode(&r); err != nil {
				s.log.Warn("a request on the socket is none of the CNI plugin", "error", err)
				return
			}
			answer := s.answer(ctx, r)
			if err := json.NewEncoder(conn).Encode(answer); err != nil {
				s.log.Warn("the CNI plugin did not take the answer", "namespace", r.Namespace, "pod", r.Name, "error", err)
			}
		}()
	}
}

// accept returns the next connection. It fails if ctx ends or the listener is closed, and tries again after any other
// error.
func (s *server) accept(ctx context.Context, lis net.Listener) (net.Conn, error) {
	for pause := acceptAgain; ; pause = min(2*pause, maxAcceptAgain) {
		conn, err := lis.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		s.metrics.acceptErrors.Inc()
		s.log.Error("a connection of the CNI plugin cannot be accepted", "error", err, "again_in", pause)
		if !clock.Sleep(ctx, clock.Real(), pause) {
			return nil, ctx.Err()
		}
	}
}

// answer decides about the Pod of a request.
func (s *server) answer(ctx context.Context, r plugin.Request) plugin.Answer {
	if r.Name == "" {
		return plugin.Answer{}
	}
	log := s.log.With("namespace", r.Namespace, "pod", r.Name)
	answer, err := s.decide(ctx, r, log)
	if err != nil {
		s.metrics.pods.WithLabelValues("failed").Inc()
		log.Error("the Pod cannot start", "error", err)
		return plugin.Answer{Error: err.Error()}
	}
	return answer
}

func (s *server) decide(ctx context.Context, r plugin.Request, log *slog.Logger) (plugin.Answer, error) {
	pod, err := s.find(ctx, r)
	if err != nil {
		return plugin.Answer{}, err
	}
	answer, why, err := decide(pod, r.Nameservers)
	switch {
	case err != nil:
		return answer, err
	case !answer.Redirect:
		s.metrics.pods.WithLabelValues("left").Inc()
		log.Debug("the Pod's traffic is not redirected", "why", why)
	default:
		s.metrics.pods.WithLabelValues("redirected").Inc()
		log.Info("the Pod's traffic is redirected", "mode", answer.Options.Mode)
	}
	return answer, nil
}

// find reads the Pod of a request. A Pod of the same name that the runtime does not mean, or none, may be about to be
// replaced: find waits a little.
func (s *server) find(ctx context.Context, r plugin.Request) (*kube.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, findWithin)
	defer cancel()
	for {
		pod, err := s.pods.Pod(ctx, r.Namespace, r.Name)
		if err == nil && !isThat(pod, r.UID) {
			err = fmt.Errorf("the Pod of this name has the uid %s, and not %s", pod.Metadata.UID, r.UID)
		}
		if err == nil || kube.Denied(err) {
			return pod, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("read the Pod: %w", err)
		case <-time.After(findAgain):
		}
	}
}

// configHash is the annotation with the uid that runtimes know a static Pod by.
const configHash = "kubernetes.io/config.hash"

// isThat reports whether a Pod is the one that a runtime knows by a uid; runtimes need not name one.
func isThat(p *kube.Pod, uid string) bool {
	return uid == "" || p.Metadata.UID == uid || p.Metadata.Annotations[configHash] == uid
}
