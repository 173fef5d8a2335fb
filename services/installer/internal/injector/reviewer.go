package injector

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/telemetry"
	"fairlead.dev/pkg/webhook"
	"fairlead.dev/services/installer/internal/inject"
)

// Path is where the API server calls; below it, /cluster/NAME/net/NAME and other pairs set variables of the proxy.
const Path = "/inject"

const (
	metricsPrefix = "fairlead_injector"
	// reasonConfiguration is why a review is not answered: no configuration has ever been good.
	reasonConfiguration = "configuration"
	// maxWarnings bounds the warnings of one answer, and maxWarningBytes is what the API server passes on of each.
	maxWarnings     = 20
	maxWarningBytes = 256
	// reviewMemory is what the reviews of API servers, and those of all other callers, may cost at once, by class: half
	// of what the chart gives the injector in all.
	reviewMemory = 128 << 20
	// valueBytes is the memory that a value of a Pod takes while it is decoded, injected and compared: a container has
	// the size of all its fields, also when it says nothing.
	valueBytes = 1000
	// maxValues is many times what Pods have.
	maxValues = 100_000
)

func serves(path string) bool { return path == Path || strings.HasPrefix(path, Path+"/") }

// reviewerConfig is of a reviewer. All but LocalCA are required.
type reviewerConfig struct {
	Settings       *settings
	NativeSidecars bool
	// LocalCA is inject.Request's.
	LocalCA    string
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// reviewer answers the API server. It keeps nothing of a Pod, so it may be called for a dry run.
type reviewer struct {
	cfg   reviewerConfig
	turns turns
	pods  *prometheus.CounterVec
}

func newReviewer(cfg reviewerConfig) *reviewer {
	return &reviewer{cfg: cfg, turns: newTurns(runtime.GOMAXPROCS(0)), pods: telemetry.CounterVec(cfg.Registerer, prometheus.CounterOpts{
		Name: metricsPrefix + "_pods_total",
		Help: "Pods that the API server has asked about, by result: injected, skipped (no sidecar is wanted), failed (the Pod is refused).",
	}, "result", resultInjected, resultSkipped, resultFailed)}
}

const (
	resultInjected = "injected"
	resultSkipped  = "skipped"
	resultFailed   = "failed"
)

// versions of AdmissionReview that are answered; they are alike in what counts.
var versions = map[string]bool{"admission.k8s.io/v1": true, "admission.k8s.io/v1beta1": true}

// review answers an AdmissionReview.
func (r *reviewer) review(ctx context.Context, request *http.Request, body []byte) ([]byte, error) {
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, webhook.NotReview("no AdmissionReview: %w", err)
	}
	if !versions[review.APIVersion] || review.Kind != "AdmissionReview" || review.Request == nil || review.Request.UID == "" {
		return nil, webhook.NotReview("no AdmissionReview of admission.k8s.io/v1 with a request and its uid")
	}
	if err := r.cfg.Settings.Ready(); err != nil {
		return nil, &webhook.Error{Status: http.StatusServiceUnavailable, Reason: reasonConfiguration, Err: err}
	}
	caller := webhook.CallerOf(ctx)
	var namespace *corev1.Namespace
	if makesPod(review.Request) {
		// Who waits for the API server holds no turn. The API server is asked for itself alone: its clients' budget is
		// one for all.
		namespace = r.cfg.Settings.namespace(ctx, review.Request.Namespace, caller.APIServer)
	}
	// The namespace is what the review says. Who is no API server takes turns from nobody but its own address by it.
	of := review.Request.Namespace
	if !caller.APIServer {
		of = caller.Address + " " + of
	}
	release, err := r.turns.take(ctx, of)
	if err != nil {
		return nil, &webhook.Error{Status: http.StatusTooManyRequests, Reason: "busy", Err: err}
	}
	defer release()
	response := r.decide(review.Request, namespace, request.URL.Path)
	response.UID = review.Request.UID
	return json.Marshal(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
}

func makesPod(request *admissionv1.AdmissionRequest) bool {
	return request.Operation == admissionv1.Create && request.SubResource == "" && request.Resource.Resource == "pods" &&
		request.Resource.Group == ""
}

// decide injects a Pod that is being made. What is no Pod, or is there already, stays as it is.
func (r *reviewer) decide(request *admissionv1.AdmissionRequest, namespace *corev1.Namespace, path string) *admissionv1.AdmissionResponse {
	if !makesPod(request) {
		return &admissionv1.AdmissionResponse{Allowed: true}
	}
	var pod corev1.Pod
	if err := json.Unmarshal(request.Object.Raw, &pod); err != nil {
		return r.refuse(request, fmt.Errorf("Pod %s/%s cannot be decoded: %w; correct its type", request.Namespace, request.Name, err))
	}
	given := pod.Namespace
	if given != "" && given != request.Namespace {
		return r.refuse(request, fmt.Errorf("Pod %s/%s says that its namespace is %s; write the one that it is made in", request.Namespace,
			request.Name, given))
	}
	pod.Namespace = request.Namespace
	settings := r.cfg.Settings
	env, warnings := inject.EnvOfPath(path)
	result, err := settings.current().Inject(inject.Request{
		Pod: &pod, Namespace: namespace, ProxyConfigs: settings.proxyConfigs(pod.Namespace), Env: env, LocalCA: r.cfg.LocalCA,
		NativeSidecars: r.cfg.NativeSidecars,
	})
	if err != nil {
		return r.refuse(request, fmt.Errorf("injection: %w", err))
	}
	response := &admissionv1.AdmissionResponse{Allowed: true, Warnings: shown(append(warnings, result.Warnings...))}
	if !result.Injected {
		r.pods.WithLabelValues(resultSkipped).Inc()
		r.cfg.Log.Debug("pod not injected", "pod", inject.Name(&pod), "reason", result.Reason)
		return response
	}
	result.Pod.Namespace = given
	patch, err := inject.Patch(request.Object.Raw, result.Pod)
	if err != nil {
		return r.refuse(request, fmt.Errorf("injection: Pod %s: %w", inject.Name(&pod), err))
	}
	r.pods.WithLabelValues(resultInjected).Inc()
	r.cfg.Log.Debug("pod injected", "pod", inject.Name(&pod), "dry_run", request.DryRun != nil && *request.DryRun)
	kind := admissionv1.PatchTypeJSONPatch
	response.Patch, response.PatchType = patch, &kind
	return response
}

// refuse answers that the Pod is not to be made: without its sidecar it would be outside of the mesh.
func (r *reviewer) refuse(request *admissionv1.AdmissionRequest, err error) *admissionv1.AdmissionResponse {
	r.pods.WithLabelValues(resultFailed).Inc()
	r.cfg.Log.Warn("pod refused", "namespace", request.Namespace, "name", request.Name, "error", err)
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: err.Error(),
	}}
}

// shown bounds warnings to what clients show.
func shown(warnings []string) []string {
	if len(warnings) > maxWarnings {
		warnings = append(warnings[:maxWarnings:maxWarnings], fmt.Sprintf("and %d more", len(warnings)-maxWarnings))
	}
	for i, w := range warnings {
		if len(w) > maxWarningBytes {
			warnings[i] = strings.ToValidUTF8(w[:maxWarningBytes-3], "") + "…"
		}
	}
	return warnings
}
