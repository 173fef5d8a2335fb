// Package admission is the validating webhook of the mesh's kinds. The Kubernetes API server calls Handler before it
// stores an object, and gets the verdict that package validate gives to every source. Configuration keeps the one
// ValidatingWebhookConfiguration that leads the API server here.
package admission

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	admissionv1 "k8s.io/api/admission/v1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/webhook"
	"fairlead.dev/pkg/yamltext"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/quota"
)

// Path is where the API server calls.
const Path = "/validate"

const (
	// reviewMemory is what the reviews of API servers, and those of all other callers, may cost at once, by class: with
	// the largest object of each class 0.6 GiB of the 1 GiB that the chart gives config-watcher.
	reviewMemory = 256 << 20
	// valueBytes is the memory that a value of an object takes while it is decoded and validated.
	valueBytes = 800
	// maxValues is of an update: the object as it is and as it is to be, each with as many values as a document may
	// have.
	maxValues = 2 * yamltext.MaxIndicators
)

// Config of a Handler. All but APIServers, Tenancy, Root, Quota and Clock are required.
type Config struct {
	APIServers *webhook.APIServers
	// Tenancy says which objects may have no effect beyond their namespace, and Root which namespace is the mesh's
	// root.
	Tenancy normalise.Tenancy
	Root    func() string
	// Quota bounds what the objects of a namespace cost; nil if nothing does.
	Quota      *quota.Table
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
}

// Handler answers AdmissionReviews of version v1. It changes nothing, so it may be called for a dry run. It is safe for
// concurrent use.
type Handler struct {
	*webhook.Handler
	cfg     Config
	reviews *prometheus.CounterVec
}

// NewHandler registers the metrics.
func NewHandler(cfg Config) *Handler {
	h := &Handler{cfg: cfg, reviews: promauto.With(cfg.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "fairlead_config_watcher_admission_reviews_total",
		Help: "Objects that the API server has asked about, by kind and verdict (allowed, denied).",
	}, []string{"kind", "verdict"})}
	h.Handler = webhook.NewHandler(webhook.Config{
		Metrics: "fairlead_config_watcher", Serves: func(path string) bool { return path == Path }, Path: Path,
		APIServers: cfg.APIServers, Memory: reviewMemory, ValueBytes: valueBytes, MaxValues: maxValues,
		Review: h.review, Log: cfg.Log, Registerer: cfg.Registerer, Clock: cfg.Clock,
	})
	return h
}

// review answers one review.
func (h *Handler) review(ctx context.Context, _ *http.Request, body []byte) ([]byte, error) {
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, webhook.NotReview("no AdmissionReview: %w", err)
	}
	if review.APIVersion != admissionv1.SchemeGroupVersion.String() || review.Kind != "AdmissionReview" || review.Request == nil ||
		review.Request.UID == "" {
		return nil, webhook.NotReview("no AdmissionReview of %s with a request and its uid", admissionv1.SchemeGroupVersion)
	}
	response := h.decide(ctx, review.Request)
	h.count(review.Request, response)
	return json.Marshal(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
}

// count records a verdict. Kinds come from the API server, and only known ones become a label.
func (h *Handler) count(request *admissionv1.AdmissionRequest, response *admissionv1.AdmissionResponse) {
	kind, verdict := "other", "denied"
	if kinds.Canonical(request.Kind.Group, request.Kind.Kind) != "" {
		kind = request.Kind.Kind
	}
	if response.Allowed {
		verdict = "allowed"
	} else {
		h.cfg.Log.Debug("object denied", "kind", request.Kind.Kind, "namespace", request.Namespace, "name", request.Name, "dry_run",
			request.DryRun != nil && *request.DryRun,
			"reason", response.Result.Message)
	}
	h.reviews.WithLabelValues(kind, verdict).Inc()
}
