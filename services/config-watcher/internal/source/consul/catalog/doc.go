// Package catalog follows the services and instances of a Consul datacenter.
package catalog
