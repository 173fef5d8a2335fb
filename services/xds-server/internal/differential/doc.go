// Package differential tests that a proxy holds what the translators build from scratch, whatever its history: delta or
// sotw, reconnects, changes of replica, lost streams and rejections.
package differential
