package object

import corev1 "k8s.io/api/core/v1"

// Endpoints are what Kubernetes deprecates, and still mirrors in EndpointSlices.
type Endpoints = corev1.Endpoints //nolint:staticcheck // users have them

// EndpointAddress is one of Endpoints.
type EndpointAddress = corev1.EndpointAddress //nolint:staticcheck // of Endpoints
