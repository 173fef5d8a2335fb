// Package webhook is what the admission webhooks of two services share. Handler is the HTTP side, which a Kubernetes
// API server calls: it bounds and reads the reviews, gives each to a function, and counts. Keeper decides when the
// objects by which API servers find the webhook are looked at. What a review says, what is answered and what is kept is
// the services' own.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fairshare"
	"fairlead.dev/pkg/telemetry"
)

const (
	// ReadyPath answers 200 as long as the port serves.
	ReadyPath = "/readyz"
	// MaxBodyBytes is the size of a request to the API server that it still reads; its store keeps objects of 1.5 MiB.
	MaxBodyBytes = 3 << 20
	// maxAtOnce bounds the reviews of API servers that are read or wait at once, maxOthersAtOnce those of all other
	// callers, and maxAtOncePerAddress those of one caller's address. The bodies of all other callers are then at most
	// 96 MiB.
	maxAtOnce           = 64
	maxOthersAtOnce     = 32
	maxAtOncePerAddress = 16
	// maxPatience is the timeout of a webhook whose configuration says nothing.
	maxPatience = 10 * time.Second
	// copies of a review's bytes there are until it is answered: as they came, in the object, and in the answer.
	copies = 8
	// apiServerTurns is how many reviews of API servers may be answered at once for each processor, and minTurns how
	// many of all other callers at least.
	apiServerTurns = 4
	minTurns       = 2
	// slowAfter is the time within which a caller sends a review, unless it is slow; an API server takes milliseconds.
	slowAfter = time.Second
)

// secondsBounds are the bounds of the time to answer. 0.05 s is the limit of the injector's objective, and 0.5 s that
// of its alert (services/installer/ops).
var secondsBounds = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5}

// reasons are those of Handler's own errors, and of NotReview.
var reasons = []string{"busy", "caller", "content_type", "decode", "internal", "method", "path", "read", "size", "slow", "values"}

// Config of a Handler. All but Reasons, APIServers and Clock are required.
type Config struct {
	// Metrics is how the names of the metrics begin: "fairlead_config_watcher".
	Metrics string
	// Serves says which paths are the webhook's, and Path which to tell of to those who call another.
	Serves func(path string) bool
	Path   string
	// Review answers a review, both in JSON. Its error is an *Error; another error is the server's own.
	Review func(ctx context.Context, r *http.Request, body []byte) ([]byte, error)
	// APIServers have places, memory and turns that no other caller can take.
	APIServers *APIServers
	// Memory in bytes that the decoding and answering of API servers' reviews may take at once; those of all other
	// callers may take as much again. A review is taken to cost eight times its size and ValueBytes for each of its
	// values. One that has more than MaxValues is refused.
	Memory, ValueBytes int64
	MaxValues          int
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

// class is API servers, or all other callers.
type class struct {
	// places are of reviews from their first byte on. A caller with many makes room for others with those that do not
	// run yet, and with its own that it has not sent within slowAfter.
	places *fairshare.Pool
	// turns are of reviews that are decoded and answered. They bound what that costs.
	turns *fairshare.Pool
}

func newClass(cfg *Config, places, perAddress, turns int) class {
	return class{
		places: fairshare.New(fairshare.Config{Places: places, PerOwner: perAddress, Policy: fairshare.OldestUnfixed, Spare: slowAfter,
			Clock: cfg.Clock}),
		turns: fairshare.New(fairshare.Config{Places: turns, Budget: cfg.Memory, Waiting: fairshare.Unlimited, NewcomersFirst: true,
			Clock: cfg.Clock}),
	}
}

// Caller is who asks, as the connection proves it.
type Caller struct {
	Address   string
	APIServer bool
}

type callerKey struct{}

// NewContext returns a context from which CallerOf returns the caller.
func NewContext(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller of a review, from the context that Review gets.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Handler serves a webhook. It is safe for concurrent use.
type Handler struct {
	cfg        Config
	apiServers class
	others     class
	seconds    prometheus.Histogram
	refused    *prometheus.CounterVec
}

// NewHandler registers the metrics.
func NewHandler(cfg Config) *Handler {
	cfg.Clock, cfg.APIServers = clock.Or(cfg.Clock), cmp.Or(cfg.APIServers, &APIServers{})
	f := promauto.With(cfg.Registerer)
	h := &Handler{
		cfg: cfg,
		// So many turns that API servers' reviews can wait for each other inside, and others two at least: one may be
		// large.
		apiServers: newClass(&cfg, maxAtOnce, maxAtOnce, apiServerTurns*runtime.GOMAXPROCS(0)),
		others:     newClass(&cfg, maxOthersAtOnce, maxAtOncePerAddress, max(minTurns, runtime.GOMAXPROCS(0))),
		refused: telemetry.CounterVec(cfg.Registerer, prometheus.CounterOpts{
			Name: cfg.Metrics + "_admission_requests_refused_total",
			Help: "Requests to the webhook's port that were no review, or were not answered, by reason.",
		}, "reason", slices.Concat(reasons, cfg.Reasons)...),
		seconds: f.NewHistogram(prometheus.HistogramOpts{
			Name: cfg.Metrics + "_admission_seconds", Help: "Time from a review's arrival to its answer.",
			Buckets: secondsBounds,
		}),
	}
	for name, c := range map[string]class{"api_server": h.apiServers, "other": h.others} {
		f.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        cfg.Metrics + "_admission_memory_bytes",
			Help:        "What the reviews that are decoded and answered now are taken to cost, by caller (api_server, other).",
			ConstLabels: prometheus.Labels{"caller": name},
		}, func() float64 { return float64(c.turns.Load().Cost) })
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
	caller := Caller{Address: host(r.RemoteAddr), APIServer: h.cfg.APIServers.are(r)}
	of := h.others
	switch {
	case caller.APIServer:
		of = h.apiServers
	case h.cfg.APIServers.Require:
		return nil, &Error{http.StatusForbidden, "caller", errors.New("the caller is no API server that this webhook knows")}
	}
	ctx, cancel := context.WithTimeout(NewContext(r.Context(), caller), patienceOf(r))
	defer cancel()
	place, err := of.places.Take(caller.Address, 0, func() {
		_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0))
		cancel()
	})
	if err != nil {
		return nil, &Error{http.StatusTooManyRequests, "busy", errors.New("too many reviews at once")}
	}
	defer place.Release()
	body, err := read(http.MaxBytesReader(w, r.Body, MaxBodyBytes), r.ContentLength)
	var tooLarge *http.MaxBytesError
	switch {
	case !place.Set(fairshare.Busy):
		return nil, &Error{http.StatusRequestTimeout, "slow", errors.New("the review has not come before others needed its place")}
	case errors.As(err, &tooLarge):
		return nil, &Error{http.StatusRequestEntityTooLarge, "size", fmt.Errorf("the review has more than %d bytes", MaxBodyBytes)}
	case err != nil:
		return nil, &Error{http.StatusBadRequest, "read", fmt.Errorf("the review cannot be read: %w", err)}
	}
	values := countValues(body)
	if values > h.cfg.MaxValues {
		return nil, &Error{http.StatusRequestEntityTooLarge, "values",
			fmt.Errorf("the review has %d values or more, more than %d; make the object smaller", values, h.cfg.MaxValues)}
	}
	turn, err := of.turns.Take(caller.Address, copies*int64(len(body))+int64(values)*h.cfg.ValueBytes, nil)
	if err == nil {
		err = turn.Wait(ctx)
	}
	if err != nil {
		return nil, &Error{http.StatusTooManyRequests, "busy",
			errors.New("too many reviews at once: this one has had no turn before its time was over, or others needed its place")}
	}
	defer turn.Release()
	if !place.Set(fairshare.Fixed) {
		return nil, &Error{http.StatusTooManyRequests, "busy", errors.New("too many reviews at once: others needed this one's place")}
	}
	return h.cfg.Review(ctx, r, body)
}

// read reads a body whose length its sender may have told; the buffer is then no larger.
func read(from io.Reader, length int64) ([]byte, error) {
	var buffer bytes.Buffer
	if length > 0 && length <= MaxBodyBytes {
		buffer.Grow(int(length) + bytes.MinRead)
	}
	_, err := buffer.ReadFrom(from)
	return buffer.Bytes(), err
}

// valueMarks are the bytes of which a JSON text has about one for each value; those in texts are counted, too.
var valueMarks = [...]byte{'[', '{', ',', ':'}

// countValues bounds from above how many values a JSON text has, as package yamltext does for documents.
func countValues(text []byte) (n int) {
	for _, mark := range valueMarks {
		n += bytes.Count(text, []byte{mark})
	}
	return n
}

// patienceOf is how long the API server waits for the answer, which it says in the URL.
func patienceOf(r *http.Request) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || d <= 0 || d > maxPatience {
		return maxPatience
	}
	return d
}
