package object

import corev1 "k8s.io/api/core/v1"

// Endpoints and its addresses, which Kubernetes deprecates, and still mirrors in EndpointSlices.
type (
	Endpoints       = corev1.Endpoints       //nolint:staticcheck // users have them
	EndpointAddress = corev1.EndpointAddress //nolint:staticcheck // of Endpoints
)
