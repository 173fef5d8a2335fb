// Package webhook is what the admission webhooks of two services share. Handler is the HTTP side, which a Kubernetes
// API server calls: it bounds and reads the reviews, gives each to a function, and counts. Keeper decides when the
// objects by which API servers find the webhook are looked at. What a review says, what is answered and what is kept is
// the services' own.
package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"fairlead.dev/pkg/clock"
)

const (
	// ReadyPath answers 200 as long as the port serves.
	ReadyPath = "/readyz"
	// MaxBodyBytes is the size of a request to the API server that it still reads; its store keeps objects of 1.5 MiB.
	MaxBodyBytes = 3 << 20
	// maxAtOnce bounds the reviews that are read and decoded at once, and maxAtOncePerAddress those of one caller's
	// address. The bodies of all are then at most 200 MiB.
	maxAtOnce           = 64
	maxAtOncePerAddress = 32
)

// secondsBounds are the bounds of the time to answer. 0.05 s is the limit of the injector's objective, and 0.5 s that
// of its alert (services/installer/ops).
var secondsBounds = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5}

// reasons are those of Handler's own errors, and of NotReview.
var reasons = []string{"busy", "content_type", "decode", "internal", "method", "path", "read", "size", "slow"}

// Config of a Handler. All but Reasons and Clock are required.
type Config struct {
	// Metrics is how the names of the metrics begin: "fairlead_config_watcher".
	Metrics string
	// Serves says which paths are the webhook's, and Path which to tell of to those who call another.
	Serves func(path string) bool
	Path   string
	// Review answers a review, both in JSON. Its error is an *Error; another error is the server's own.
	Review func(ctx context.Context, r *http.Request, body []byte) ([]byte, error)
	// Reasons are those of Review's errors that Handler has not itself. The metric has them from the start.
	Reasons    []string
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
}

// Error is of a request that is no review, or that cannot be answered now. The API server then follows the webhook's
// failurePolicy.
type Error struct {
	// Status is that of HTTP, Reason a word for the metric.
	Status int
	Reason string
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// NotReview returns the error of a body that cannot be decoded.
func NotReview(format string, a ...any) error {
	return &Error{http.StatusBadRequest, "decode", fmt.Errorf(format, a...)}
}

// Handler serves a webhook. It is safe for concurrent use.
type Handler struct {
	cfg     Config
	slots   *slots
	seconds prometheus.Histogram
	refused *prometheus.CounterVec
}

// NewHandler registers the metrics.
func NewHandler(cfg Config) *Handler {
	cfg.Clock = clock.Or(cfg.Clock)
	f := promauto.With(cfg.Registerer)
	h := &Handler{
		cfg: cfg, slots: newSlots(maxAtOnce, maxAtOncePerAddress),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: cfg.Metrics + "_admission_requests_refused_total", Help: "Requests to the webhook's port that were no review, or were not answered, by reason.",
		}, []string{"reason"}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{
			Name: cfg.Metrics + "_admission_seconds", Help: "Time from a review's arrival to its answer.",
			Buckets: secondsBounds,
		}),
	}
	for _, reason := range slices.Concat(reasons, cfg.Reasons) {
		h.refused.WithLabelValues(reason)
	}
	return h
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := h.cfg.Clock.Now()
	if r.URL.Path == ReadyPath {
		w.WriteHeader(http.StatusOK)
		return
	}
	answer, err := h.serve(w, r)
	if err != nil {
		h.refuse(w, err)
		return
	}
	h.seconds.Observe(h.cfg.Clock.Now().Sub(begun).Seconds())
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer) // the API server has gone if this fails
}

func (h *Handler) refuse(w http.ResponseWriter, err error) {
	bad, ok := errors.AsType[*Error](err)
	if !ok {
		bad = &Error{http.StatusInternalServerError, "internal", err}
	}
	h.refused.WithLabelValues(bad.Reason).Inc()
	if bad.Status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, bad.Error(), bad.Status)
}

// serve reads one review and has it answered.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if !h.cfg.Serves(r.URL.Path) {
		return nil, &Error{http.StatusNotFound, "path", fmt.Errorf("the webhook is at %s", h.cfg.Path)}
	}
	if r.Method != http.MethodPost {
		return nil, &Error{http.StatusMethodNotAllowed, "method", fmt.Errorf("method %s: the API server posts AdmissionReviews", r.Method)}
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return nil, &Error{http.StatusUnsupportedMediaType, "content_type", errors.New("Content-Type is not application/json")}
	}
	slot := h.slots.take(host(r.RemoteAddr), h.cfg.Clock.Now(), func() { _ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) })
	if slot == nil {
		return nil, &Error{http.StatusTooManyRequests, "busy", errors.New("too many reviews at once")}
	}
	defer slot.release()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case !slot.read():
		return nil, &Error{http.StatusRequestTimeout, "slow", errors.New("the review has not come before others needed its place")}
	case errors.As(err, &tooLarge):
		return nil, &Error{http.StatusRequestEntityTooLarge, "size", fmt.Errorf("the review has more than %d bytes", MaxBodyBytes)}
	case err != nil:
		return nil, &Error{http.StatusBadRequest, "read", fmt.Errorf("the review cannot be read: %w", err)}
	}
	return h.cfg.Review(r.Context(), r, body)
}

// host is the address of a caller without its port.
func host(remote string) string {
	if h, _, err := net.SplitHostPort(remote); err == nil {
		return h
	}
	return remote
}
