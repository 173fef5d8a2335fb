package object

import corev1 "k8s.io/api/core/v1"

// Endpoints is the Kubernetes kind that EndpointSlice replaces. Objects of users still have it.
type Endpoints = corev1.Endpoints //nolint:staticcheck // users have them

// EndpointAddress is one address of an Endpoints object.
type EndpointAddress = corev1.EndpointAddress //nolint:staticcheck // of Endpoints
