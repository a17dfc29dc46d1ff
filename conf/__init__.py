"""The configuration files of vime, a package so that an installed vime finds them. See README.md."""
