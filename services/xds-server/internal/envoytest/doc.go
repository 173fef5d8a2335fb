// Package envoytest runs the real Envoy in tests of xds-server.
package envoytest
