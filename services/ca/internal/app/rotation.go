package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/ops"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/ca/internal/driver"
	"fairlead.dev/services/ca/internal/rotation"
)

// maxCommandBytes holds a signer file with what JSON adds to it.
const maxCommandBytes = 256 << 10

// rotationPages are those of package caapi.
func (s *Server) rotationPages(d *driver.Driver) {
	s.Ops.Debug(caapi.StatusPath, "the signers, the rotation that is under way, and who has not followed it yet",
		ops.JSON(func(*http.Request) (any, error) { return d.Status(), nil }))
	s.Ops.Debug(caapi.CommandPath, "takes an order about signers and rotations (POST); `fairlead ca` sends them",
		ops.JSON(func(r *http.Request) (any, error) { return command(r, d) }))
}

// commander is what carries orders out; *driver.Driver is one.
type commander interface {
	Do(ctx context.Context, c caapi.Command) error
	Status() caapi.Status
}

// command carries an order out, and answers the status after it.
func command(r *http.Request, to commander) (any, error) {
	failed := func(code int, err error) (any, error) { return nil, &ops.StatusError{Code: code, Err: err} }
	if r.Method != http.MethodPost {
		return failed(http.StatusMethodNotAllowed, errors.New("use POST"))
	}
	var c caapi.Command
	decoder := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxCommandBytes))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return failed(http.StatusBadRequest, fmt.Errorf("the command cannot be read: %w", err))
	}
	var refused *driver.RefusedError
	switch err := to.Do(r.Context(), c); {
	case errors.As(err, &refused):
		return failed(http.StatusConflict, err)
	case errors.Is(err, driver.ErrRecord):
		return failed(http.StatusServiceUnavailable, err)
	case err != nil:
		return failed(http.StatusBadRequest, err)
	}
	return to.Status(), nil
}

// rotationGauges registers what alerts on rotations read.
func (s *Server) rotationGauges(d *driver.Driver) {
	s.Registry.MustRegister(rotationCollector{
		status: d.Status,
		step: prometheus.NewDesc("fairlead_ca_rotation_step_info",
			"1 for the step at which the rotation of the signer stands; idle without one.", []string{"step"}, nil),
		since: prometheus.NewDesc("fairlead_ca_rotation_step_since_timestamp_seconds", "When that step began.", nil, nil),
		waits: prometheus.NewDesc("fairlead_ca_rotation_waits",
			"What the step waits for: holders of certificates, replicas of the ca, a signer, or the bundle.", []string{"for"}, nil),
		expiry: prometheus.NewDesc("fairlead_ca_authority_expiry_timestamp_seconds",
			"When the first root of each signer ends, and the first certificate that leaves need.", []string{"signer", "authority"}, nil),
	})
}

// rotationCollector makes metrics of a Status.
type rotationCollector struct {
	status                     func() caapi.Status
	step, since, waits, expiry *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c rotationCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.step, c.since, c.waits, c.expiry} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c rotationCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	s := c.status()
	gauge(c.step, 1, s.Step)
	gauge(c.since, float64(s.Since.Unix()))
	waits := map[string]float64{"holders": float64(s.Lagging.Total)}
	switch rotation.Step(s.Step) {
	case rotation.Prepare:
		waits["signer"] = float64(len(s.Waits))
	case rotation.Issue:
		waits["replicas"] = float64(len(s.Waits))
	case rotation.Trust, rotation.Gate, rotation.Renew, rotation.Retire:
		waits["bundle"] = float64(len(s.Waits))
	case rotation.Idle:
	}
	for _, of := range s.Signers {
		if of.Role == "next" && of.Problem != "" {
			waits["signer"] = max(waits["signer"], 1)
		}
	}
	for _, what := range []string{"holders", "replicas", "signer", "bundle"} {
		gauge(c.waits, waits[what], what)
	}
	for _, of := range s.Signers {
		if len(of.Roots) > 0 {
			first := slices.MinFunc(of.Roots, func(a, b caapi.Root) int { return a.NotAfter.Compare(b.NotAfter) })
			gauge(c.expiry, float64(first.NotAfter.Unix()), label(of), "root")
		}
		if !of.NotAfter.IsZero() {
			gauge(c.expiry, float64(of.NotAfter.Unix()), label(of), "issuer")
		}
	}
}

// label names a signer in metrics: two of one name may be there in a rotation.
func label(s caapi.Signer) string { return fmt.Sprintf("%s-%d", s.Name, s.ID) }
